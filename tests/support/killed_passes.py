"""Passes of retention, compaction with it, killed (-9) at their steps; each leaves a file behind."""

from __future__ import annotations

from pathlib import Path

from preloaded import ran

CHILD = Path(__file__).resolve().parents[1] / "crash" / "retention_child.py"
# All kills of a soak.
PASSES_TIMEOUT_S = 6000.0


def killed_passes(made: Path, folder: Path, stride: int = 1) -> list[Path]:
    """The files that passes over a copy of `made` leave, in order; the last one was not killed.

    Args:
        stride: of the statements of a pass it is killed before every so-manieth.
    """
    done = ran([str(made), str(folder), str(stride)], program=CHILD, timeout=PASSES_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [folder / f"{step}.duckdb" for step in range(int(done.stdout) + 1)]
