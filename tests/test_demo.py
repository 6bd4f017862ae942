"""`make demo` on the first flights: both groups come to the end and the rebuilt table is the original."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "docs" / "examples" / "flights" / "demo.py"


@pytest.mark.slow
def test_the_demo_ends_with_the_same_table(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(DEMO), "--limit", "5000", "--no-spark", "--directory", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "They are the same." in ran.stdout
    assert "The worst hours of 2013" in ran.stdout
