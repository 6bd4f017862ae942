"""The command `ducktail serve`: starts the server, runs it until a signal, and tunes the process's memory.

Encoding rows takes and frees arrays of some megabytes all the time. The C library gives each of them back
to the system at once and gets its next one page by page, cleared: a tenth of what a result costs. So the
process keeps some freed memory, gives the rest back at intervals, and collects garbage less often.
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
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import ClassVar

from ...engine.cluster.joining import join
from ...engine.database import Database
from ...engine.errors import InvalidParameterValue
from ...engine.server_log import set_up
from ..server import Server, TimedLoop, TlsFiles, listen
from .configuration import Configuration, configure

# How often freed memory is given back to the system, where there is much of it.
GIVE_BACK_S = 10.0
# Of <malloc.h>: free memory that is kept at an arena's end, and sizes from which memory is got by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 8 << 20
ALONE_BYTES = 4 << 20
# Freed memory within the arenas, of all threads, that is not worth a look.
FREED_BYTES_MAX = 64 << 20
# Python looks for unreachable cycles whenever so many more objects were made than freed. Its own 700 are the
# requests of some twenty clients that are under way at once, none of them garbage: looking at them again and
# again was a quarter of the event loop's time. So many are a few megabytes.
YOUNG_OBJECTS_MAX = 10_000


def run_server(chosen: argparse.Namespace) -> int:
    """Serve a database until SIGTERM or SIGINT; the exit status."""
    # As in __main__: a SIGHUP waits until the server takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    leave_pandas_out()
    configuration = configure(vars(chosen), os.environ)
    node = configuration.cluster()
    if node is not None:
        configuration = configuration.as_node(node)
    set_up(sys.stderr, configuration["log_level"], configuration["log_format"])
    settings = configuration.settings()
    tls, insecure = _tls(configuration), configuration["insecure"]
    listener = listen(configuration["host"], configuration["port"], elsewhere=tls is not None or insecure)
    watched = None
    try:
        if configuration["metrics_port"] is not None:
            # Who names another host than the default says that others may look.
            watched = listen(configuration["metrics_host"], configuration["metrics_port"], elsewhere=True)
        if tls is not None:
            tls.load()  # What cannot be used is told before a file is made.
        path = str(Path(configuration["path"]))
        database = Database.open(path, settings, accept_loss=configuration["accept_loss"])
    except BaseException:
        listener.close()
        if watched is not None:
            watched.close()
        raise
    try:
        keep_freed_memory()
        collect_seldom()
        database.shown_settings = configuration.shown(settings)
        if node is not None:
            join(database, node)
        server = Server(database, listener, tls, insecure=insecure, watched=watched)
        with asyncio.Runner(loop_factory=TimedLoop) as runner:
            runner.run(_serve(server, path))
    finally:
        database.close()
    return 0


def _tls(configuration: Configuration) -> TlsFiles | None:
    """Certificate and key; None: no TLS."""
    certificate, key = configuration["tls_cert"], configuration["tls_key"]
    if (certificate is None) != (key is None):
        raise InvalidParameterValue("--tls-cert and --tls-key go together")
    return None if certificate is None else TlsFiles(certificate, key)


async def _serve(server: Server, path: str) -> None:
    """Serve until a signal ends it.

    Args:
        path: the database file, as it is named when the server is ready.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    host, port = server.address
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on {shown}:{port}, file {path}", flush=True)
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
    """Return freed memory to the system, if much of it lies between used blocks.

    Each worker thread has an arena of its own, of which the C library gives back the end alone: statements of
    megabytes, parsed on one thread and then another, would leave some hundred megabytes.
    """
    library = ctypes.CDLL(None)
    mallinfo = getattr(library, "mallinfo2", None)
    if mallinfo is None:
        return
    mallinfo.restype = _Mallinfo2
    if mallinfo().fordblks > FREED_BYTES_MAX:
        library.malloc_trim(0)


class _Without:
    """A finder of modules that says that pandas is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Nothing about any other module."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of the server", name=name)
        return None


def leave_pandas_out() -> None:
    """Keep pandas out of this process, which has no use of it.

    Where it is installed pyarrow imports it at the first array that it makes of Python values, to see whether
    they are pandas' own: 33 MB and 0.2 s of each server's start.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _Without)


def collect_seldom() -> None:
    """Run the garbage collector less often, and never on imported modules, which stay to the end."""
    gc.collect()
    gc.freeze()
    # Then it is garbage like all else; DuckDB's module would list what it finds left over on standard error.
    atexit.register(gc.unfreeze)
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
