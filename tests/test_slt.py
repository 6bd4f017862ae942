"""Every file of tests/slt in process and over the wire, and the bytes that the server sends for it.

The gate runs each file one way: half of them, others with each commit, over the wire with one of the two
protocols, by the file's name, the others in process. A soak runs all of them each way, and a rewrite of the
transcripts with both protocols.
`pytest tests/test_slt.py --slt-rewrite` writes the answers, `--transcripts-rewrite` tests/transcripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from amounts import SOAK, by_name, chosen
from slt_file import WAYS
from slt_run import run_file, transcript_of
from slt_ways import Host, InProcess, Wire
from transcripts import RECORDINGS, Transcript

CORPUS = Path(__file__).parent / "slt"
WIRE_WAYS = WAYS[1:]
FILES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.slt"))
# The options that write answers: of all files.
REWRITES = ("slt-rewrite", "transcripts", "transcripts-rewrite")
# A file with a record of one protocol only.
ONE_WAY = re.compile(rf"^(?:skipif|onlyif) (?:{'|'.join(WIRE_WAYS)})$", re.MULTILINE)


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The server process of both wire ways, started when the first of them runs."""
    process = Host()
    yield process
    process.end()


def test_in_process(file: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rewriting = request.config.getoption("--slt-rewrite")
    run_file(CORPUS / file, "in_process", InProcess(), tmp_path / "test.duckdb", rewriting)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The ways of each file."""
    if "file" not in metafunc.fixturenames:
        return
    written = any(metafunc.config.getoption(f"--{name}") for name in REWRITES)
    both = [file for file in FILES if written or ONE_WAY.search(text(file))]
    others = [file for file in FILES if file not in both]
    over_the_wire = chosen(others, len(others) // 2, "over the wire")
    if "way" in metafunc.fixturenames:
        ways = [(file, way) for file in both for way in WIRE_WAYS]
        ways += [(file, way) for file in over_the_wire for way in by_name(file, WIRE_WAYS)]
        metafunc.parametrize(("file", "way"), ways)
    else:
        left = FILES if SOAK or written else [file for file in FILES if file not in over_the_wire]
        metafunc.parametrize("file", left)


def text(file: str) -> str:
    return (CORPUS / file).read_text()


def test_over_the_wire(
    file: str, way: str, tmp_path: Path, host: Host, request: pytest.FixtureRequest
) -> None:
    rewriting = request.config.getoption("--transcripts-rewrite")
    heard = []
    for number in range(RECORDINGS if rewriting else 1):
        runner = Wire(host, extended=way == "extended")
        place = tmp_path / str(number)
        place.mkdir()
        run_file(CORPUS / file, way, runner, place / "test.duckdb")
        statements, answers = transcript_of(CORPUS / file, way, runner.transcript)
        heard.append(answers)
    transcript = Transcript(f"slt/{file.removesuffix('.slt')}", WIRE_WAYS, statements)
    transcript.keep(way, heard, request.config)
