"""Commands and programs forked from a process that has loaded ducktail: loading takes a second of processor
time, and the first catalog a fifth of one.

Run as a program it is that process. It takes requests over a socket: a JSON object a line, with the words,
the environment and the directory of a `ducktail` command or of another program, and two descriptors for what
it writes. It answers with the new process's number. That is a child of nobody there: the test's process has
declared itself its reaper, so that it can wait for it as for a child of its own.

Tests of the command itself (tests/gateway/test_command.py and those beside it) start it as a user does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

# Of <sys/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES = 1 << 20


class Forked:
    """A process that was forked so, with what tests use of subprocess.Popen.

    Args:
        words: of the command `ducktail`, or of `program`, a Python file that is run instead.
        stdout, stderr: descriptors; without them a pipe, and the same place as stdout.
        environment: that of the test's process where it is not given.
    """

    def __init__(
        self,
        words: list[str],
        *,
        program: Path | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        reading, writing = os.pipe() if stdout is None else (None, stdout)
        request = {
            "words": words,
            "program": None if program is None else str(program),
            "environment": dict(os.environ if environment is None else environment),
            "directory": os.getcwd(),
        }
        try:
            self.pid = _preloader().fork(request, [writing, writing if stderr is None else stderr])
        finally:
            if stdout is None:
                os.close(writing)
        self.args = ["ducktail" if program is None else str(program), *words]
        self.stdout: IO[str] | None = None if reading is None else os.fdopen(reading)
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

    def fork(self, request: Mapping[str, Any], outputs: list[int]) -> int:
        with self._mutex:
            socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], outputs)
            answer = self._socket.recv(32)
        assert answer, "the process that forks servers has ended"
        return int(answer)


@cache
def _preloader() -> _Preloader:
    return _Preloader()


def ran(
    words: list[str],
    *,
    program: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 100.0,
) -> subprocess.CompletedProcess[str]:
    """A process that was forked so, and has ended, as subprocess.run gives it."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = Forked(
            words, program=program, stdout=out.fileno(), stderr=error.fileno(), environment=environment
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), error.read())


def serve_forks(control: socket.socket) -> None:
    """Fork a process for each request, until nobody can ask any more."""
    buffer, descriptors = b"", list[int]()
    while True:
        part, came, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
        if not part:
            return
        buffer, descriptors = buffer + part, descriptors + list(came)
        if not buffer.endswith(b"\n"):
            continue
        request, outputs = json.loads(buffer), descriptors
        buffer, descriptors = b"", []
        reading, writing = os.pipe()
        first = os.fork()
        if not first:
            second = os.fork()
            if second:
                os.write(writing, str(second).encode())
                os._exit(0)
            for descriptor in (reading, writing, control.detach()):
                os.close(descriptor)
            become(request, outputs)
        for output in outputs:
            os.close(output)
        os.waitpid(first, 0)
        control.sendall(os.read(reading, 32))
        os.close(reading)
        os.close(writing)


def become(request: dict[str, Any], outputs: list[int]) -> None:
    """Be the command or the program; it ends this process."""
    words, program = request["words"], request["program"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for taken, place in zip((nothing, *outputs), range(3), strict=True):
        os.dup2(taken, place)
    for taken in (nothing, *outputs):
        os.close(taken)
    sys.argv = [program or "ducktail", *words]
    if program is None:
        from ducktail.__main__ import main

        leave(main())
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")
    leave(0)


def leave(code: int) -> None:
    """End this process as Python does, but for its modules: they are not taken apart one by one."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# A statement of each kind that many tests run. The first of a kind in a process loads modules, reads lists of
# DuckDB's functions and compiles expressions: half a second of processor time for all of them.
WARMING = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)",
    "CREATE STREAM s ON TABLE t WITH (snapshot = 'initial')",
    "CREATE CONSUMER GROUP g ON s",
    "CREATE TOPIC p",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    "UPDATE t SET v = upper(v) WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
    "SELECT * FROM STREAM s CONSUMER GROUP g",
    "SELECT count(*), max(v) FROM t JOIN (SELECT 1 AS id) USING (id)",
    "SELECT lsn, count(*) FROM STREAM s CONSUMER GROUP g GROUP BY lsn ORDER BY lsn",
    "COMMIT OFFSETS ON s CONSUMER GROUP g",
    "SELECT relname FROM pg_catalog.pg_class",
    "SHOW STREAMS",
    "ALTER TABLE t ADD COLUMN w INTEGER",
    "DROP STREAM s CASCADE",
)


def warm_up() -> None:
    """Make once what each process makes: the rows of DuckDB's functions, and modules that are loaded late."""
    from ducktail.engine.database import Database
    from ducktail.engine.waiting import drive
    from ducktail.pgwire_gateway.catalog.installation import install
    from ducktail.pgwire_gateway.command.serve import leave_pandas_out
    from ducktail.sql.session import Session

    leave_pandas_out()
    database = Database.open(":memory:")
    install(database)
    session = Session(database, wire=True)
    for text in WARMING:
        result = drive(session.execute(drive(session.parse(text))))
        while result.fetch(None) is not None:
            pass
    drive(session.close())
    database.close()


if __name__ == "__main__":
    import faulthandler

    import ducktail.__main__

    assert ducktail.__main__
    warm_up()
    assert threading.active_count() == 1
    # A server that does not come up is asked by SIGABRT where its threads are.
    faulthandler.enable()
    gc.collect()
    gc.freeze()
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
