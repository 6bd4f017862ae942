"""node-postgres' integration files, each a test and a process of its own; it passes if it prints no error.

The last release whose npm package contains them is 4.5.7; they run with that release.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 40
NODE = ["node", "--no-deprecation", "--require", str(Path(__file__).with_name("node") / "ready_state.js")]


def run(package: Path, file: Path) -> str:
    """The outcome of a file."""
    url = "postgres://{PGUSER}@{PGHOST}:{PGPORT}/{PGDATABASE}".format_map(os.environ)
    try:
        done = subprocess.run(
            [*NODE, str(file), url],
            cwd=package,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Timeout: {LIMIT_S} s"
    lines = done.stdout.decode(errors="replace").splitlines()
    # The files catch their exceptions, and print them: the exit code alone says nothing.
    told = [line for line in lines if "Error" in line or line.startswith(("Message: ", "error: "))]
    if done.returncode == 0 and not told:
        return "passed"
    return told[0] if told else f"exit code {done.returncode}"


def main(results: Path, package: Path) -> None:
    """Make the suite's table and run its files."""
    url = "postgres://{PGUSER}@{PGHOST}:{PGPORT}/{PGDATABASE}".format_map(os.environ)
    subprocess.run(
        [*NODE, "script/create-test-tables.js", url],
        cwd=package,
        timeout=LIMIT_S,
        check=False,
    )
    with results.open("w") as out:
        for file in sorted((package / "test" / "integration").rglob("*-tests.js")):
            if file.name.startswith("heroku"):
                continue  # connects to a host elsewhere
            outcome = " ".join(run(package, file).split())
            out.write(f"{file.relative_to(package / 'test' / 'integration')}\t{outcome}\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
