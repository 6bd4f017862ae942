"""Builds the wheel from a copy of the tree, so that nothing left over from another build gets in.

python tests/support/build_wheel.py DIRECTORY     # prints the wheel's path
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[2]

# What is no part of the sources: tools make it, and setuptools would take old files from build/.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "*.duckdb*"
)


def build_wheel(directory: Path) -> Path:
    """Build the wheel into `directory` and return its path. Changes the working directory back."""
    directory = directory.resolve()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        os.chdir(tree)
        try:
            return directory / build_meta.build_wheel(str(directory))
        finally:
            os.chdir(before)


if __name__ == "__main__":
    print(build_wheel(Path(sys.argv[1])))
