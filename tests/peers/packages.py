"""Downloads of `make peers`: an environment of its own, source packages and npm packages, in build/peers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites import Suite

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "peers"
PYTHON = BUILD / "venv" / "bin" / "python"
SOURCES = BUILD / "sources"


def install(suite: Suite) -> str | None:
    """Install what a suite wants, once; why it cannot be had, otherwise."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for program in suite.programs:
        if not shutil.which(program) and not Path(program).exists():
            return f"{program} is missing"
    try:
        _once("venv", HERE / "requirements.txt", _environment)
        if suite.source:
            _once("sources", HERE / "sources.txt", _sources)
        if suite.requirements:
            _once(suite.name, HERE / suite.requirements, _own_environment(suite))
        if suite.node:
            _once(f"npm-{suite.node}", HERE / suite.node / "package.json", _npm(suite.node))
    except subprocess.CalledProcessError as error:
        told = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"{' '.join(map(str, error.cmd[:6]))} failed: {told[-1] if told else error.returncode}"
    return None


def source(name: str) -> Path:
    """The folder of an unpacked source package."""
    return next(
        path for path in SOURCES.iterdir() if path.is_dir() and path.name.lower().startswith(f"{name}-")
    )


def modules(folder: str) -> Path:
    """The npm packages of a folder with a package.json."""
    return BUILD / "npm" / folder / "node_modules"


def tests_only(name: str) -> Path:
    """A folder with only the tests of a source package, which would hide the installed one otherwise."""
    where = BUILD / "tests" / name
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(source(name) / "tests", where / "tests")
    # The folder is pytest's root then, and not the repository.
    (where / "pytest.ini").write_text("[pytest]\n")
    return where


def _once(name, wanted, work) -> None:  # type: ignore[no-untyped-def]
    mark = BUILD / f".{name}"
    text = wanted.read_text()
    if mark.exists() and mark.read_text() == text:
        return
    work()
    mark.write_text(text)


def _call(*words: str | Path) -> None:
    subprocess.run(
        words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _environment(folder: str = "venv", requirements: str = "requirements.txt") -> None:
    _call(sys.executable, "-m", "venv", "--clear", BUILD / folder)
    pip = BUILD / folder / "bin" / "pip"
    _call(pip, "install", "-q", "--disable-pip-version-check", "-r", HERE / requirements)


def _own_environment(suite: Suite):  # type: ignore[no-untyped-def]
    return lambda: _environment(suite.name, suite.requirements)


def _sources() -> None:
    shutil.rmtree(SOURCES, ignore_errors=True)
    words = [
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--require-hashes",
    ]
    _call(BUILD / "venv" / "bin" / "pip", *words, "-d", SOURCES, "-r", HERE / "sources.txt")
    for archive in SOURCES.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(SOURCES, filter="data")


def _npm(folder: str):  # type: ignore[no-untyped-def]
    def install() -> None:
        target = modules(folder).parent
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / folder / name, target / name)
        _call("npm", "ci", "--prefix", target, "--silent", "--no-audit", "--no-fund", "--ignore-scripts")

    return install
