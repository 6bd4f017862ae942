"""Passes of retention, compaction with it, killed (-9) at their steps; each leaves a file behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHILD = HERE.parent / "crash" / "retention_child.py"


def killed_passes(made: Path, folder: Path, stride: int = 1) -> list[Path]:
    """The files that passes over a copy of `made` leave, in order; the last one was not killed.

    Args:
        stride: of the statements of a pass it is killed before every so-manieth.
    """
    ran = subprocess.run(
        [sys.executable, str(CHILD), str(made), str(folder), str(stride)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    assert ran.returncode == 0, ran.stderr
    return [folder / f"{step}.duckdb" for step in range(int(ran.stdout) + 1)]
