"""The image of docs/operations/Dockerfile, built and run by buildah over a root of Debian's packages.

The isolation is chroot, which starts no service and needs no kernel feature beyond mounts; the network of the
container is that of this machine. Only a soak builds it: that takes minutes, and packages from the network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from amounts import amount
from cluster_processes import free_ports

pytestmark = [pytest.mark.container, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "container" / "root.tar"
PACKAGES = "python3,python3-venv,ca-certificates"
# The package index may be reached by way of a proxy that this machine knows.
MACHINES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
USER_ID = 5480


class Buildah:
    """buildah with a storage of its own."""

    def __init__(self, place: Path) -> None:
        self.words = [
            *("buildah", "--root", str(place / "storage"), "--runroot", str(place / "run")),
            *("--storage-driver", "vfs"),
        ]

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout.strip()


class Container:
    """A running container of the image, with the command and the environment that the image names."""

    def __init__(self, buildah: Buildah, name: str, command: list[str], ports: tuple[int, int]) -> None:
        settings = {"DUCKTAIL_PORT": ports[0], "DUCKTAIL_METRICS_PORT": ports[1]}
        words = [word for key, value in settings.items() for word in ("--env", f"{key}={value}")]
        self.process = subprocess.Popen(
            [*buildah.words, "run", "--isolation", "chroot", *words, name, "--", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._listening.wait(120) and any("listening on" in line for line in self.lines), self.lines

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening on" in line:
                self._listening.set()
        self._listening.set()

    def pid(self) -> int:
        """The process in the container: the last of buildah's descendants."""
        found = self.process.pid
        while children := _children(found):
            [found] = children
        return found

    def end(self) -> int:
        """End it as a container engine does, by the signal that the image names."""
        os.kill(self.pid(), signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join()
        return code


def _children(pid: int) -> list[int]:
    """The children of a process: each thread has its own."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """A storage with the image `ducktail`."""
    if not amount("DUCKTAIL_CONTAINERS", 0, 1):
        pytest.skip("only a soak builds the image")
    if not BUILT.exists():
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        making = BUILT.with_suffix(".new.tar")
        words = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={PACKAGES}",
            "bookworm",
            str(making),
        ]
        subprocess.run(words, check=True)
        making.rename(BUILT)
    place = tmp_path_factory.mktemp("container")
    buildah = Buildah(place)
    base = buildah("from", "scratch")
    subprocess.run(["tar", "-C", buildah("mount", base), "--exclude=./dev/*", "-xf", str(BUILT)], check=True)
    buildah("commit", "--rm", base, "debian-python")
    source = place / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    shutil.copy(ROOT / "docs" / "operations" / "Dockerfile", source)
    mounts = [word for file in MACHINES if Path(file).exists() for word in ("--volume", f"{file}:{file}:ro")]
    words = ("--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/debian-python")
    buildah("bud", *words, *mounts, "-f", str(source / "Dockerfile"), "-t", "ducktail", str(source))
    yield buildah
    buildah("rm", "--all")
    shutil.rmtree(place)


def test_the_image_serves_and_keeps_its_data(buildah: Buildah) -> None:
    image: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", "localhost/ducktail"))
    config = image["Docker"]["config"]
    assert (config["User"], config["StopSignal"]) == ("ducktail", "SIGTERM")
    assert set(config["ExposedPorts"]) == {"5480/tcp", "9187/tcp"}
    command = [*config["Entrypoint"], *config["Cmd"]]
    name = buildah("from", "localhost/ducktail")
    port, watched = free_ports(2)
    conninfo = f"host=127.0.0.1 port={port} dbname=ducktail user=ducktail"
    for number in range(2):
        container = Container(buildah, name, command, (port, watched))
        try:
            status = Path(f"/proc/{container.pid()}/status").read_text()
            assert status.partition("Uid:")[2].split()[:4] == [str(USER_ID)] * 4
            with psycopg.connect(conninfo, autocommit=True) as connection:
                if not number:
                    connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
                    connection.execute("CREATE STREAM s ON t")
                connection.execute(f"INSERT INTO t VALUES ({number})")
                rows = connection.execute("SELECT lsn FROM STREAM s").fetchall()
                assert [row[0] for row in rows] == list(range(1, number + 2))
            with urlopen(f"http://127.0.0.1:{watched}/ready") as answer:
                assert answer.status == 200
            kind, *probe = config["Healthcheck"]["Test"]
            assert kind == "CMD"
            probe = [word.replace("9187", str(watched)) for word in probe]
            buildah("run", "--isolation", "chroot", name, "--", *probe)
        finally:
            assert container.end() == 0
    # The HTTP API's packages are there.
    buildah("run", "--isolation", "chroot", name, "--", "python", "-c", "import aiohttp")
