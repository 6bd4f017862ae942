"""A real `ducktail serve` process for a test: started, asked for its port, stopped or killed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from preloaded import Forked

COMMAND = Path(sys.executable).with_name("ducktail")

# From the start of Python to the line that says the port; two busy cores take some seconds, and half a minute
# where ten others want them.
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0

LISTENING = re.compile(r"^listening on (?P<host>.+):(?P<port>\d+), file (?P<file>.+)$")


class ServerProcess:
    """One server over one DuckDB file, in a process of its own.

    Args:
        path: the database's file; made where there is none.
        options: further words of the command line, such as ("--port", "5480").
        environment: added to the environment, such as {"DUCKTAIL_PORT": "5480"}.
        preloaded: it is forked from a process that has loaded ducktail; with an environment of its own it is
            started as a user would, in any case.

    Raises:
        RuntimeError: it ended, or said nothing in START_TIMEOUT_S; with what it wrote.
    """

    def __init__(
        self,
        path: Path | str,
        options: tuple[str, ...] = ("--port", "0"),
        environment: Mapping[str, str] | None = None,
        *,
        preloaded: bool = True,
    ) -> None:
        self.path = path
        self._options = options
        self._preloaded = preloaded and environment is None
        # A server that does not come up is asked by SIGABRT where its threads are.
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self._output: queue.Queue[str | None] = queue.Queue()
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        """Start it (again) and wait until it listens; `host` and `port` are then those of this run."""
        self.process = self._started(["serve", str(self.path), *self._options])
        # A queue of this run's own: the last run's may still hold its end.
        self._output = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process, self._output), daemon=True)
        self._reader.start()
        self.host, self.port = self._await_listening()

    def _started(self, words: list[str]) -> subprocess.Popen[str] | Forked:
        if self._preloaded:
            return Forked(words)
        return subprocess.Popen(
            [str(COMMAND), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )

    def connect(self, **arguments: Any) -> psycopg.Connection[Any]:
        """A psycopg connection to it, autocommit unless told otherwise."""
        return psycopg.connect(**{"conninfo": self.conninfo, "autocommit": True, **arguments})

    @property
    def conninfo(self) -> str:
        """What libpq programs take, psql among them."""
        return f"host={self.host} port={self.port} dbname=ducktail user=ducktail"

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """Ask it to end, wait, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self._ended()

    def kill(self) -> int:
        """End it as a power cut would: SIGKILL, no chance to clean up."""
        self.process.kill()
        return self._ended()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ended(self) -> int:
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not end in {STOP_TIMEOUT_S:.0f} s: {self.lines}") from None
        finally:
            self._reader.join(STOP_TIMEOUT_S)
            assert self.process.stdout
            self.process.stdout.close()
        return code

    def _read(self, process: subprocess.Popen[str] | Forked, output: queue.Queue[str | None]) -> None:
        assert process.stdout
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            output.put(line.rstrip("\n"))
        output.put(None)

    def _await_listening(self) -> tuple[str, int]:
        ends_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                line = self._output.get(timeout=max(0.0, ends_s - time.monotonic()))
            except queue.Empty:
                self.stop(signal.SIGABRT)
                told = "\n".join(self.lines)
                raise RuntimeError(f"no port in {START_TIMEOUT_S:.0f} s, only {told}") from None
            if line is None:
                code = self._ended()
                raise RuntimeError(f"the server ended with {code}: {self.lines}")
            if match := LISTENING.match(line):
                return match["host"].strip("[]"), int(match["port"])
