"""Object mappers on a server: each step of their programs is a test, which has PostgreSQL's recorded value.

The programs in mappers/ print a line for each step. `expected.tsv` has the values of PostgreSQL 15; with
RECORD=1 a run on it writes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "mappers"
EXPECTED = HERE / "expected.tsv"
PROGRAMS = ["alembic", "drizzle", "knex", "peewee", "sequelize", "tortoise", "typeorm"]
LIMIT_S = 120
# ducktail's mappers need it: docs/clients.md, "Object mappers".
OPTIONS = "-c unenforced_foreign_keys=on"


def steps(program: str, modules: Path, *, ours: bool) -> dict[str, str]:
    """The lines of a program, by the name of the step."""
    node = HERE / f"{program}_steps.cjs"
    words = ["node", str(node)] if node.exists() else [sys.executable, str(HERE / f"{program}_steps.py")]
    environment = {**os.environ, "NODE_PATH": str(modules)} | ({"PGOPTIONS": OPTIONS} if ours else {})
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    lines = output.decode(errors="replace").splitlines()
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def main(results: Path, modules: Path, server: str) -> None:
    """Run the programs, and write an outcome for each step."""
    recording = os.environ.get("RECORD") == "1" and server == "postgres"
    lines = [] if recording else EXPECTED.read_text().splitlines()
    expected = dict(line.rsplit("\t", 1) for line in lines)
    with results.open("w") as out:
        for program in PROGRAMS:
            found = {
                f"{program}: {name}": value
                for name, value in steps(program, modules, ours=server == "ducktail").items()
            }
            if recording:
                expected |= found
            for test in [test for test in expected if test.startswith(f"{program}: ")]:
                value = found.get(test, "did not run")
                out.write(f"{test}\t{'passed' if value == expected[test] else value}\n")
            out.flush()
    if recording:
        EXPECTED.write_text("".join(f"{test}\t{value}\n" for test, value in expected.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
