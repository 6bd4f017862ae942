"""A `ducktail serve` process with the HTTP API, for the programs that measure it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = Path(sys.executable).with_name("ducktail")


class HttpServer:
    """A server that is ready.

    Attributes:
        http: the port of its HTTP API.
        conninfo: where a client of the wire connects.
    """

    def __init__(self, path: Path, *flags: str) -> None:
        command = [COMMAND, "serve", path, "--port", "0", "--http", "127.0.0.1:0", "--log-level", "warning"]
        self.process = subprocess.Popen([*map(str, command), *flags], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        ports: dict[str, int] = {}
        while len(ports) < 2:
            line = self.process.stdout.readline()
            assert line, "the server has ended"
            if line.startswith("listening on "):
                ports["wire"] = int(line.partition(",")[0].rpartition(":")[2])
            elif line.startswith("console at "):
                ports["http"] = int(line.strip().rstrip("/").rpartition(":")[2])
        self.http = ports["http"]
        self.conninfo = f"host=127.0.0.1 port={ports['wire']} user=bench dbname=ducktail"

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self, name: str = "VmRSS") -> float:
        """Resident memory now; its peak with the name VmHWM."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) / 1024


@contextmanager
def served(*flags: str) -> Iterator[HttpServer]:
    """A server on a new file, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        server = HttpServer(Path(folder) / "bench.duckdb", *flags)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.communicate()
