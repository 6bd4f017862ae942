"""Other projects' test suites against PostgreSQL and against ducktail: `make peers`.

The suites come from PyPI and npm, pinned, into build/peers. Each runs first against a PostgreSQL of its own,
then against a new ducktail. A test counts if PostgreSQL passes it. A test that fails on ducktail alone must
stand in known.tsv with its reason; the run fails otherwise, where a suite is below its bar, and on an XX000.
psycopg 3's suite is not among them: its source package on PyPI has no tests.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import packages  # noqa: E402
from known import KNOWN, Known  # noqa: E402
from outcome import Outcomes  # noqa: E402
from postgres_server import postgres  # noqa: E402
from server_process import ServerProcess  # noqa: E402
from suites import SUITES, Server, Suite  # noqa: E402

# PostgreSQL's two-phase commit is off by default; some suites test it.
POSTGRES_OPTIONS = ("max_prepared_transactions=10", "max_connections=200")
# XX000 as the clients call it.
INTERNAL = re.compile(r"XX000|InternalError_|InternalServerError")


@contextlib.contextmanager
def postgres_server(home: Path) -> Iterator[Server]:
    """A PostgreSQL of the run's own."""
    with postgres(home, *POSTGRES_OPTIONS) as conninfo:
        words = dict(word.split("=", 1) for word in conninfo.split())
        yield Server("postgres", words["host"], int(words["port"]), "postgres")


@contextlib.contextmanager
def ducktail_server(home: Path) -> Iterator[Server]:
    """A ducktail over a new file, named as PostgreSQL's first database."""
    with ServerProcess(home / "postgres.duckdb", preloaded=False) as process:
        yield Server("ducktail", process.host, process.port, "postgres")


def run(suite: Suite, name: str) -> Outcomes:
    """One suite on one server, with the suite's output in build/peers/out."""
    home = Path(tempfile.mkdtemp(prefix="ducktail-peers-"))
    out = packages.BUILD / "out"
    out.mkdir(exist_ok=True)
    results = out / f"{suite.name}.{name}.results"
    results.unlink(missing_ok=True)
    start = postgres_server if name == "postgres" else ducktail_server
    try:
        with start(home) as server, (out / f"{suite.name}.{name}.log").open("w") as log:
            suite.prepare(server)
            for command in suite.commands(server, results):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        command.words,
                        cwd=command.folder,
                        env=command.environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        timeout=suite.limit_s,
                        check=False,
                    )
            return Outcomes.read(results)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def line(suite: Suite, wanted: Outcomes, found: Outcomes) -> tuple[str, bool]:
    """A suite's line of the table, and that it reaches its bar."""
    passed = len(wanted.passed & found.passed)
    percent = 100 * passed / max(1, len(wanted.passed))
    figures = f"{len(wanted.passed):>11,}{passed:>10,}{percent:>8.1f} %{suite.bar:>6} %"
    return f"{suite.title:<44}{figures}", bool(wanted.passed) and percent >= suite.bar


def main() -> int:
    """Run the suites that were asked for and print the table; 1 if something must be looked at."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--again", action="store_true", help="PostgreSQL's outcomes of the last run are kept")
    parser.add_argument(
        "--known-rewrite", action="store_true", help="add new failures to known.tsv, to be explained"
    )
    words = parser.parse_args()
    chosen = [SUITES[name] for name in words.suites or SUITES]
    known = Known.read(KNOWN)
    table, wrong = [], []
    for suite in chosen:
        reason = packages.install(suite)
        if reason:
            table.append(f"{suite.title:<44}  not run: {reason}")
            continue
        kept = packages.BUILD / "out" / f"{suite.name}.postgres.results"
        wanted = Outcomes.read(kept) if words.again and kept.exists() else run(suite, "postgres")
        found = run(suite, "ducktail")
        text, reached = line(suite, wanted, found)
        table.append(text)
        print(text, flush=True)
        if not reached:
            wrong.append(f"{suite.name}: below its bar")
        failed = {test: found.message(test) for test in wanted.passed - found.passed}
        if words.known_rewrite:
            known.add(suite.name, failed)
        new, over = known.compare(suite.name, failed)
        wrong += [f"{suite.name}: {test}: not in known.tsv: {failed[test]}" for test in new]
        internal = [test for test in failed if INTERNAL.search(failed[test])]
        wrong += [f"{suite.name}: {test}: an internal error" for test in internal]
        for test in over:
            print(f"  passes now, and can leave known.tsv: {test}")
    if words.known_rewrite:
        known.write(KNOWN)
    print(f"\n{'suite':<44}{'PostgreSQL':>11}{'ducktail':>10}{'':>10}{'bar':>8}")
    print("\n".join(table))
    for text in wrong:
        print(text)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
