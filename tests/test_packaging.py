"""The wheel holds the tree and nothing else; the lock pins what pyproject.toml asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ducktail

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "sql", "pgwire_gateway", "spark_connector")
# By this module's name Spark finds the data source; in the wheel it stands beside ducktail/.
FINDER = Path("spark_connector/pyspark_ducktail")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by a process of its own: setuptools changes the working directory."""
    directory = tmp_path_factory.mktemp("wheel")
    script = ROOT / "tests" / "support" / "build_wheel.py"
    built = subprocess.run(
        [sys.executable, str(script), str(directory)], capture_output=True, text=True, timeout=100
    )
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip().splitlines()[-1])


def package_files() -> set[str]:
    """What the wheel should hold, as paths in it."""
    files = [path for path in ROOT.iterdir() if path.suffix == ".py" or path.name == "py.typed"]
    for package in PACKAGES:
        files += [path for path in (ROOT / package).rglob("*") if path.is_file()]
    return {in_wheel(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def in_wheel(path: Path) -> str:
    """Where a file of the tree stands in the wheel."""
    if path.is_relative_to(FINDER):
        return path.relative_to(FINDER.parent).as_posix()
    return f"ducktail/{path.as_posix()}"


def in_tree(name: str) -> Path:
    """Where a file of the wheel stands in the tree."""
    if name.startswith(f"{FINDER.name}/"):
        return ROOT / FINDER.parent / name
    return ROOT / name.removeprefix("ducktail/")


def test_the_wheel_is_the_tree_file_by_file(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package_files()


def test_the_files_of_the_wheel_are_the_files_of_the_tree(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for name in package_files():
        assert archive.read(name) == in_tree(name).read_bytes(), name


def test_the_wheel_carries_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [licence] = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    assert b"License-Expression: Apache-2.0" in archive.read(metadata)


def test_the_unpacked_wheel_imports_and_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import sys, ducktail; print(ducktail.__file__); con = ducktail.connect(); con.close()"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(tmp_path / "ducktail" / "__init__.py")


def test_spark_finds_the_data_source(wheel: Path, tmp_path: Path) -> None:
    """As Spark looks for it: modules called pyspark_*, and in each a DefaultSource."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from importlib import import_module
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource
found = [import_module(info.name) for info in iter_modules() if info.name.startswith("pyspark_")]
found = [module.DefaultSource for module in found if issubclass(module.DefaultSource, DataSource)]
print([(source.name(), sys.modules[source.__mro__[1].__module__].__file__) for source in found])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    source = tmp_path / "ducktail" / "spark_connector" / "data_source.py"
    assert ran.stdout.strip() == str([("ducktail", str(source))])


def test_the_command_says_its_version() -> None:
    command = Path(sys.executable).with_name("ducktail")
    ran = subprocess.run([str(command), "--version"], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == f"ducktail {ducktail.__version__}", ran.stderr


def test_the_lock_pins_every_requirement() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    versions = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = PYPROJECT["project"]
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[requirement.name.lower()]), text


def test_the_lock_names_no_index_and_no_host() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line), line
