"""The commands `ducktail standby` and `ducktail promote`.

A standby listens at the address at which it is to serve, and refuses clients with 57P03 while it follows.
`promote` asks the process by a file beside the standby's, waits until it is promoted, and reports its answer;
the process then serves, with the flags with which it was started. Source: docs/continuous_copies.md,
"Standby".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from ...engine.clock import SystemClock
from ...engine.errors import (
    CannotConnectNow,
    DucktailError,
    InvalidParameterValue,
    IoError,
    LockNotAvailable,
    UndefinedObject,
    WrongState,
)
from ...engine.replication.standby import Standby, StandbyPosition, is_held, read_position, standby_path
from ..codec.backend import ErrorResponse, Report, encode
from ..codec.frontend import CANCEL_REQUEST_CODE, GSSENC_REQUEST_CODE, SSL_REQUEST_CODE
from .configuration import address_of
from .serve import run_server

logger = logging.getLogger("ducktail.standby")

# The pause between two looks for new objects, and for a request.
LOOK_S = 0.2
# A client that is to be refused sends its first message within this time; others than these are cut.
REFUSAL_S, REFUSED_MAX = 10.0, 100
NOT_ENCRYPTED = b"N"
START = struct.Struct("!II")


def add_arguments(standby: argparse.ArgumentParser, promote: argparse.ArgumentParser) -> None:
    """Add the flags of both commands; `standby` has those of `serve` already."""
    standby.add_argument(
        "--from",
        dest="follows",
        type=Path,
        metavar="DIR",
        required=True,
        help="the directory to which the primary copies (its --copy-to)",
    )
    standby.add_argument(
        "--primary", metavar="HOST:PORT", help="the primary's address, to which clients are sent"
    )
    promote.add_argument("path", type=Path, metavar="PATH", help="the PATH of the running standby")
    promote.add_argument(
        "--unfenced",
        action="store_true",
        help="promote without the directory: nothing then keeps the old primary from going on",
    )
    promote.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="longest wait until it is promoted (default: 600)",
    )


def run_standby(chosen: argparse.Namespace) -> int:
    """Follow a copy until the standby is promoted, and then serve; return the exit status."""
    if chosen.primary is not None:
        try:
            address_of(chosen.primary)
        except ValueError as error:
            raise InvalidParameterValue(f"--primary: {error}") from None
    return run_server(chosen, _Following(chosen.follows, chosen.primary).follow)


class _Following:
    """The time before a standby is promoted."""

    def __init__(self, directory: Path, primary: str | None) -> None:
        self._directory = directory
        self._primary = primary
        self._refused = 0  # clients that are being refused

    def follow(self, path: Path, listener: socket.socket) -> bool:
        """Follow until a promotion; False if a signal ends the process before."""
        if not self._directory.is_dir():
            raise InvalidParameterValue(
                f'"{self._directory}" is not a directory', hint="Is its disk mounted?"
            )
        standby = Standby(path, self._directory, SystemClock())
        try:
            if standby.position is not None and standby.position.promoted:
                if not standby.position.done:  # It was killed on the way.
                    standby.promote(fenced=True)
                return True
            return asyncio.run(self._follow(standby, listener))
        finally:
            standby.close()

    async def _follow(self, standby: Standby, listener: socket.socket) -> bool:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            standby.stopping = True
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        host, port = listener.getsockname()[:2]
        server = await asyncio.start_server(self._refuse, sock=listener.dup())
        print(f"standby on {host}:{port}, follows {self._directory}, file {standby.path}", flush=True)
        told = None
        try:
            while not stop.is_set():
                if (fenced := _request(standby.path)) is not None:
                    position = await asyncio.to_thread(_promoted, standby, fenced=fenced)
                    if position is not None:
                        print(_line(position), flush=True)
                        return True
                fault = await asyncio.to_thread(_caught_up, standby)
                if fault != told and not stop.is_set():
                    told = fault
                    if fault is not None:
                        logger.error("following %s fails: %s", self._directory, fault)
                    else:
                        logger.warning("following %s", self._directory)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), LOOK_S)
            return False
        finally:
            server.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client's startup with 57P03."""
        self._refused += 1
        try:
            if self._refused > REFUSED_MAX:
                return
            async with asyncio.timeout(REFUSAL_S):
                # At most one request for each kind of encryption precedes the startup.
                for _ in range(3):
                    _, code = START.unpack(await reader.readexactly(START.size))
                    if code == CANCEL_REQUEST_CODE:
                        break
                    if code not in (SSL_REQUEST_CODE, GSSENC_REQUEST_CODE):
                        writer.write(encode(self._refusal()))
                        await writer.drain()
                        break
                    writer.write(NOT_ENCRYPTED)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # It has gone.
        finally:
            self._refused -= 1
            writer.close()

    def _refusal(self) -> ErrorResponse:
        where = "the server whose copy it follows" if self._primary is None else self._primary
        return ErrorResponse(
            Report(
                "FATAL",
                CannotConnectNow.sqlstate,
                "this server is a standby",
                f"The primary is {where}.",
                "ducktail promote lets the standby take its place.",
            )
        )


def _caught_up(standby: Standby) -> str | None:
    """Follow once; the fault, or None."""
    try:
        standby.catch_up()
    except DucktailError as error:
        return f"{error.message}: {error.detail}" if error.detail else error.message
    except OSError as error:
        return str(error)
    return None


def _promoted(standby: Standby, *, fenced: bool) -> StandbyPosition | None:
    """Promote, and leave the answer for the command that waits; None if it failed."""
    try:
        return standby.promote(fenced=fenced)
    except (DucktailError, OSError) as error:
        logger.error("the promotion has failed: %s", error)
        parts = [str(error)]
        if isinstance(error, DucktailError):
            parts += [part for part in (error.detail, error.hint) if part]
        _write(_answer_path(standby.path), {"error": parts})
        return None


def promote(chosen: argparse.Namespace) -> int:
    """Ask a running standby to take its primary's place, and wait until it has.

    Raises:
        UndefinedObject: there is no standby.
        WrongState: it does not run, is promoted already, or cannot be promoted.
        LockNotAvailable: it was not promoted in time.
        IoError: a file cannot be written.
    """
    path: Path = chosen.path
    _answer_path(path).unlink(missing_ok=True)
    if (position := read_position(path)) is not None and position.done:
        raise WrongState(f'"{path}" is promoted already')
    if not is_held(path):
        if position is None and not standby_path(path).exists():
            raise UndefinedObject(f'there is no standby "{path}"')
        raise WrongState(
            f'no process follows with the standby "{path}"', hint="Start ducktail standby first."
        )
    _write(_request_path(path), {"fenced": not chosen.unfenced})
    ends_s = time.monotonic() + chosen.timeout
    try:
        while time.monotonic() < ends_s:
            if (position := read_position(path)) is not None and position.done:
                print(_line(position))
                return 0
            with suppress(FileNotFoundError):
                message, *more = json.loads(_answer_path(path).read_text())["error"]
                _answer_path(path).unlink()
                raise WrongState(message, detail=" ".join(more) or None)
            time.sleep(LOOK_S)
    finally:
        _request_path(path).unlink(missing_ok=True)
    raise LockNotAvailable(
        f"the standby was not promoted within {chosen.timeout:g} s", hint="Its log tells what it does."
    )


def _line(position: StandbyPosition) -> str:
    return f"promoted: transaction {position.txid}, LSN {position.lsn}, incarnation {position.incarnation}"


def _request_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.standby.promote")


def _answer_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.standby.answer")


def _request(path: Path) -> bool | None:
    """Take a request: True to promote with a fence, False without; None if there is none."""
    place = _request_path(path)
    try:
        fenced = bool(json.loads(place.read_text())["fenced"])
    except FileNotFoundError:
        return None
    place.unlink(missing_ok=True)
    return fenced


def _write(place: Path, facts: dict[str, object]) -> None:
    """Write a small file whole."""
    partial = place.with_name(f"{place.name}.partial")
    try:
        partial.write_text(json.dumps(facts))
        partial.replace(place)
    except OSError as error:
        raise IoError(f'"{place}" cannot be written', detail=str(error)) from error
