"""Servers forked from a process that has loaded ducktail: loading takes a second of processor time.

Run as a program it is that process. It takes requests over a socket: a JSON object a line, with the words,
the environment and the directory of a `ducktail` command, and a descriptor for what it writes. It answers
with the new process's number. That is a child of nobody there: the test's process has declared itself
its reaper, so that it can wait for it as for a child of its own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO

# Of <sys/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES = 1 << 20


class Forked:
    """A process that was forked so, with what tests use of subprocess.Popen."""

    def __init__(self, words: list[str]) -> None:
        reading, writing = os.pipe()
        try:
            self.pid = _preloader().fork(words, writing)
        finally:
            os.close(writing)
        self.args = ["ducktail", *words]
        self.stdout: IO[str] = os.fdopen(reading)
        self.returncode: int | None = None
        self._ended = os.pidfd_open(self.pid)
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        with self._waiting:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._ended)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.poll() is None:
            select.select([self._ended], [], [], timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class _Preloader:
    """The process that has loaded ducktail, as a test's process sees it."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, theirs = socket.socketpair()
        # It ends when this socket is closed, at the latest with this process.
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._mutex = threading.Lock()

    def fork(self, words: list[str], output: int) -> int:
        request = {"words": words, "environment": dict(os.environ), "directory": os.getcwd()}
        with self._mutex:
            socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], [output])
            answer = self._socket.recv(32)
        assert answer, "the process that forks servers has ended"
        return int(answer)


@cache
def _preloader() -> _Preloader:
    return _Preloader()


def serve_forks(control: socket.socket) -> None:
    """Fork a server for each request, until nobody can ask any more."""
    buffer, descriptors = b"", list[int]()
    while True:
        part, came, _, _ = socket.recv_fds(control, REQUEST_BYTES, 1)
        if not part:
            return
        buffer, descriptors = buffer + part, descriptors + list(came)
        if not buffer.endswith(b"\n"):
            continue
        request, output = json.loads(buffer), descriptors.pop()
        buffer = b""
        reading, writing = os.pipe()
        first = os.fork()
        if not first:
            second = os.fork()
            if second:
                os.write(writing, str(second).encode())
                os._exit(0)
            for descriptor in (reading, writing, control.detach()):
                os.close(descriptor)
            become(request, output)
        os.close(output)
        os.waitpid(first, 0)
        control.sendall(os.read(reading, 32))
        os.close(reading)
        os.close(writing)


def become(request: dict[str, object], output: int) -> None:
    """Be the command; it ends this process."""
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list) and isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["directory"]))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for taken, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(taken, place)
    os.close(nothing)
    os.close(output)
    sys.argv = ["ducktail", *words]
    from ducktail.__main__ import main

    sys.exit(main())


if __name__ == "__main__":
    import faulthandler

    import ducktail.__main__

    assert ducktail.__main__
    assert threading.active_count() == 1
    # A server that does not come up is asked by SIGABRT where its threads are.
    faulthandler.enable()
    gc.collect()
    gc.freeze()
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
