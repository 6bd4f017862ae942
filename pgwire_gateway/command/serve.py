"""The command `ducktail serve`: starts the server, runs it until a signal, and tunes the process's memory.

Encoding rows allocates and frees arrays of some megabytes all the time. The C library returns each of them to
the system at once and gets the next one page by page, cleared: a tenth of the cost of a result. So the
process keeps some freed memory, returns the rest at intervals, and collects garbage less often. Its threads
take turns more often, so that a short statement does not wait for a large one.
configuration.py reads the settings. Source: docs/design/pgwire_gateway.md, "Trade-offs".
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from ...engine.cluster.joining import join
from ...engine.database import Database
from ...engine.errors import InvalidParameterValue, NotSupported
from ...engine.server_log import set_up
from ..server import Server, TimedLoop, TlsFiles, listen
from .configuration import Configuration, address_of, configure, origins_of

if TYPE_CHECKING:
    from ..http_api.http_port import HttpPort

# The interval at which freed memory is returned to the system, if there is much of it.
GIVE_BACK_S = 10.0
# Parameters of <malloc.h>: memory kept free at an arena's end, and the size of separately mapped blocks.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 8 << 20
ALONE_BYTES = 4 << 20
# The amount of freed memory in all arenas that is too small for a check.
FREED_BYTES_MAX = 64 << 20
# Python searches for unreachable cycles after this many more objects were created than freed. Its default of
# 700 are the requests of some twenty clients, none of them garbage: repeated searches took a quarter of the
# event loop's time. This number of objects takes a few megabytes.
YOUNG_OBJECTS_MAX = 10_000
# A thread that computes gives way to another after this time. Beside large answers the event loop, and so
# every other client, waits each time for Python's default of 5 ms.
SWITCH_S = 0.001


def run_server(
    chosen: argparse.Namespace, before: Callable[[Path, socket.socket], bool] | None = None
) -> int:
    """Serve a database until SIGTERM or SIGINT, and return the exit status.

    Args:
        before: what the process does at its address before it opens the file; False ends it.

    Raises:
        DatabaseReplaced: a standby was promoted in place of the database.
    """
    # As in __main__, a SIGHUP waits until the server handles it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    leave_pandas_out()
    share_allocator()
    configuration = configure(vars(chosen), os.environ)
    node = configuration.cluster()
    if node is not None:
        configuration = configuration.as_node(node)
    set_up(sys.stderr, configuration["log_level"], configuration["log_format"])
    settings = configuration.settings()
    tls, insecure = _tls(configuration), configuration["insecure"]
    listener = listen(configuration["host"], configuration["port"], elsewhere=tls is not None or insecure)
    watched = http = None
    try:
        if configuration["http"] is not None:
            http = listen(*address_of(configuration["http"]), elsewhere=tls is not None or insecure)
        elif configuration["http_cors"] is not None:
            raise InvalidParameterValue("--http-cors is about the HTTP API, which --http serves")
        if configuration["metrics_port"] is not None:
            # A host other than the default means that others may see the port.
            watched = listen(configuration["metrics_host"], configuration["metrics_port"], elsewhere=True)
        if tls is not None:
            tls.load()  # Report an unusable certificate before a file is created.
        path = str(Path(configuration["path"]))
        if before is not None:
            if node is not None:
                raise NotSupported("a node of a cluster has no standby")
            if not before(Path(path), listener):
                for opened in (listener, watched, http):
                    if opened is not None:
                        opened.close()
                return 0
        database = Database.open(path, settings, accept_loss=configuration["accept_loss"])
    except BaseException:
        for opened in (listener, watched, http):
            if opened is not None:
                opened.close()
        raise
    try:
        keep_freed_memory()
        collect_seldom()
        sys.setswitchinterval(SWITCH_S)
        database.shown_settings = configuration.shown(settings)
        if node is not None:
            join(database, node)
        server = Server(database, listener, tls, insecure=insecure, watched=watched)
        console = None
        if http is not None:
            port = _http_port(server, http, tls, configuration)
            server.attach(port)
            console = f"{'http' if tls is None else 'https'}://{_shown(*port.address)}/"
        with asyncio.Runner(loop_factory=TimedLoop) as runner:
            runner.run(_serve(server, path, console, database))
    finally:
        database.close()
    if database.replaced is not None:
        raise database.replaced
    return 0


def _tls(configuration: Configuration) -> TlsFiles | None:
    """Certificate and key; None for no TLS."""
    certificate, key = configuration["tls_cert"], configuration["tls_key"]
    if (certificate is None) != (key is None):
        raise InvalidParameterValue("--tls-cert and --tls-key go together")
    return None if certificate is None else TlsFiles(certificate, key)


def _http_port(
    server: Server, listener: socket.socket, tls: TlsFiles | None, configuration: Configuration
) -> HttpPort:
    """The port of the HTTP API; refused where aiohttp is not installed."""
    try:
        # Imported here, because a server without that port needs no aiohttp.
        from ..http_api.http_port import HttpPort
    except ModuleNotFoundError as error:
        raise InvalidParameterValue(
            f"--http wants the package {error.name}", hint="pip install 'ducktail[http]' installs it."
        ) from None
    origins = configuration["http_cors"]
    return HttpPort(server, listener, tls, () if origins is None else origins_of(origins))


def _shown(host: str, port: int) -> str:
    """An address as it is written in front of a path."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _serve(server: Server, path: str, console: str | None, database: Database) -> None:
    """Serve until a signal ends it, or a standby is promoted in its place.

    Args:
        path: the database file, for the message that the server is ready.
        console: the address of the console, if the HTTP API is served.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def was_replaced() -> None:
        loop.call_soon_threadsafe(stop.set)

    database.on_replaced = was_replaced
    if database.replaced is not None:
        stop.set()
    await server.start()
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if console is not None:
        print(f"console at {console}", flush=True)
    print(f"listening on {_shown(*server.address)}, file {path}", flush=True)
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), GIVE_BACK_S)
        except TimeoutError:
            await asyncio.to_thread(give_back_freed_memory)
    await server.close()


def keep_freed_memory() -> None:
    """Keep some freed memory for reuse, if the C library is glibc; otherwise do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, ALONE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def share_allocator() -> None:
    """Let Arrow allocate from the C library.

    A pool of its own keeps freed memory that no other part of the process can use: after large reads of a
    log 150 MiB more, for 3 % less processor time.
    """
    pa.set_memory_pool(pa.system_memory_pool())


class _Mallinfo2(ctypes.Structure):
    """The structure in <malloc.h> with the C library's memory statistics, in bytes."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if much of it is between used blocks.

    Each worker thread has an arena, of which the C library returns only the end: large statements that are
    parsed on several threads would leave some hundred megabytes.
    """
    library = ctypes.CDLL(None)
    mallinfo = getattr(library, "mallinfo2", None)
    if mallinfo is None:
        return
    mallinfo.restype = _Mallinfo2
    if mallinfo().fordblks > FREED_BYTES_MAX:
        library.malloc_trim(0)


class _Without:
    """A finder of modules that reports pandas as missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """None for any other module."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of the server", name=name)
        return None


def leave_pandas_out() -> None:
    """Keep pandas out of this process, which does not use it.

    If it is installed, pyarrow imports it when it first makes an array of Python values, to recognize pandas'
    own: 33 MB and 0.2 s at each server's start.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _Without)


def collect_seldom() -> None:
    """Run the garbage collector less often, and never on imported modules, which stay to the end."""
    gc.collect()
    gc.freeze()
    # At the end it is garbage as well; DuckDB's module would report the rest on standard error.
    atexit.register(gc.unfreeze)
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
