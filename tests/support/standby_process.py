"""A real `ducktail standby` process for a test, which serves once it is promoted."""

from __future__ import annotations

import queue
import re
import subprocess
import time
from pathlib import Path

from preloaded import Forked
from server_process import COMMAND, START_TIMEOUT_S, ServerProcess

from ducktail.engine.replication.standby import StandbyPosition, read_position

FOLLOWING = re.compile(r"^standby on (?P<host>.+):(?P<port>\d+), follows ")
PROMOTE_TIMEOUT_S = 120.0


class StandbyProcess(ServerProcess):
    """A standby of the database that is copied to a directory.

    Args:
        path: the path at which it is to serve.
        directory: the directory.
    """

    path: Path

    def __init__(self, path: Path, directory: Path, options: tuple[str, ...] = ()) -> None:
        super().__init__(path, ("--from", str(directory), "--port", "0", *options))

    def _started(self, words: list[str]) -> subprocess.Popen[str] | Forked:
        return super()._started(["standby", *words[1:]])

    def _await_listening(self) -> tuple[str, int]:
        ends_s = time.monotonic() + START_TIMEOUT_S
        while True:
            line = self._output.get(timeout=max(0.0, ends_s - time.monotonic()))
            if line is None:
                code = self._ended()
                raise RuntimeError(f"the standby ended with {code}: {self.lines}")
            if match := FOLLOWING.match(line):
                return match["host"], int(match["port"])

    @property
    def position(self) -> StandbyPosition | None:
        """Its stored position."""
        return read_position(self.path)

    def await_lsn(self, lsn: int, timeout_s: float = 60.0) -> None:
        """Wait until it has an LSN."""
        ends_s = time.monotonic() + timeout_s
        while (found := self.position) is None or found.lsn < lsn:
            assert time.monotonic() < ends_s and self.process.poll() is None, (found, self.lines)
            time.sleep(0.02)

    def promote(self, *words: str) -> str:
        """Promote it with the command, and wait until it serves; returns what the command wrote."""
        done = promoted(self.path, *words)
        assert done.returncode == 0, done.stderr
        try:
            self.host, self.port = super()._await_listening()
        except queue.Empty:
            raise RuntimeError(f"the promoted standby does not serve: {self.lines}") from None
        return done.stdout


def promoted(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `ducktail promote`."""
    return subprocess.run(
        [str(COMMAND), "promote", str(path), *words],
        capture_output=True,
        text=True,
        timeout=PROMOTE_TIMEOUT_S,
        check=False,
    )
