"""The systemd unit of docs/operations, as systemd reads it, with the configuration beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
PROGRAM = "/opt/ducktail/bin/ducktail"
# Where 10 is a service without any protection; systemd calls what is below 4.1 "OK".
EXPOSURE_MAX = "40"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the program where it is here."""
    text = (OPERATIONS / "ducktail.service").read_text()
    assert PROGRAM in text
    here = Path(sys.executable).with_name("ducktail")
    (tmp_path / "ducktail.service").write_text(text.replace(PROGRAM, str(here)))
    return tmp_path / "ducktail.service"


def analyzed(*words: str) -> tuple[int, str]:
    """The exit code of systemd-analyze, and what it says against a unit."""
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.systemd
def test_systemd_has_nothing_against_the_unit(unit: Path) -> None:
    assert analyzed("verify", str(unit)) == (0, "")
    # It would say so.
    unit.write_text(unit.read_text().replace("UMask=", "Umask="))
    assert "Unknown key" in analyzed("verify", str(unit))[1]


@pytest.mark.systemd
def test_the_unit_restricts_the_service(unit: Path) -> None:
    words = ("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}")
    assert analyzed(*words, str(unit))[0] == 0
    unit.write_text(re.sub(r"^(Protect|Restrict|Capability|Private).*\n", "", unit.read_text(), flags=re.M))
    assert analyzed(*words, str(unit))[0] != 0


def test_the_command_of_the_unit_runs(unit: Path, serve: Callable[..., ServerProcess]) -> None:
    """With its configuration file, whose paths and ports are those of the test."""
    [command] = re.findall(r"^ExecStart=\S+ serve --config (\S+)$", unit.read_text(), re.M)
    assert command == "/etc/ducktail/ducktail.toml"
    configuration = unit.with_name("ducktail.toml")
    text = (OPERATIONS / "ducktail.toml").read_text().replace("port = 5480", "port = 0")
    configuration.write_text(
        text.replace("port = 9187", "port = 0").replace("/var/lib/ducktail", str(unit.parent))
    )
    arguments: dict[str, Any] = {"options": ("--config", str(configuration))}
    with serve(**arguments).connect() as connection:
        shown = connection.execute(
            "SELECT setting FROM ducktail.settings WHERE name = 'log_format'"
        ).fetchone()
    assert shown == ("json",)
