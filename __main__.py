"""The command `ducktail`: serve a database, look after its file, run a pipeline.

Where the settings of `serve` come from is in configuration.py.
"""

from __future__ import annotations

import signal
import sys

if sys.argv[1:2] == ["serve"]:
    # A SIGHUP waits until the server takes it; loading what follows takes a second, in which it would end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from . import __version__, cluster_command, maintenance
from .allocation import collect_seldom, give_back_freed_memory, keep_freed_memory, leave_pandas_out
from .configuration import LOG_LEVEL, Configuration, add_flag, add_flags, configure, setting_of
from .engine.cluster.joining import join
from .engine.database import Database
from .engine.errors import DucktailError, InvalidParameterValue
from .engine.log.logs import TEXT, set_up
from .pgwire_gateway import Server, TimedLoop, TlsFiles, listen
from .spark_connector.pipelines import command as pipeline_command

# A command that prints its findings logs only what is wrong.
MAINTENANCE_LEVEL = replace(LOG_LEVEL, default="warning")

# How often freed memory is given back to the system, where there is much of it.
GIVE_BACK_S = 10.0

SERVE_ABOUT = """\
Opens (or makes) the DuckDB file PATH and serves it over the Postgres wire until SIGTERM or SIGINT.
When it is ready it prints one line, `listening on HOST:PORT, file PATH`, on standard output; logs go to
standard error. The database is called by its file's stem, and answers to the names `ducktail` and
`postgres` as well."""
SERVE_AFTER = """\
each flag but --accept-loss and --insecure also in the environment, as DUCKTAIL_ and its name
(DUCKTAIL_PORT=5481), and in the file that --config names (port = 5481); a flag goes before the
environment, the environment before the file.

example:
  ducktail serve shop.duckdb &
  psql -h 127.0.0.1 -p 5480 -d shop"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 fine, 1 it could not be done, 2 a wrong flag."""
    chosen = parser().parse_args(arguments)
    try:
        return COMMANDS[chosen.command](chosen)
    except DucktailError as error:
        print(f"ducktail: {_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before the server was ready to end in its own way.
        return 130


def _run_server(chosen: argparse.Namespace) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # See the head of the file.
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
    """Where certificate and key are; None: no TLS.

    Raises:
        InvalidParameterValue: 22023, one without the other.
    """
    certificate, key = configuration["tls_cert"], configuration["tls_key"]
    if (certificate is None) != (key is None):
        raise InvalidParameterValue("--tls-cert and --tls-key go together")
    return None if certificate is None else TlsFiles(certificate, key)


def _maintain(work: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that looks after a file, with its logs set up."""

    def run(chosen: argparse.Namespace) -> int:
        set_up(sys.stderr, setting_of(MAINTENANCE_LEVEL, vars(chosen), os.environ), TEXT)
        return work(chosen)

    return run


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _run_server,
    "check": _maintain(lambda chosen: maintenance.check(chosen.path)),
    "backup": _maintain(lambda chosen: maintenance.make_backup(chosen.path, chosen.to)),
    "restore": _maintain(lambda chosen: maintenance.restore(chosen.backup, chosen.to)),
    "reset-commit-times": _maintain(lambda chosen: maintenance.reset_commit_times(chosen.path)),
    "pipeline": pipeline_command.run_command,
    "cluster": cluster_command.run_command,
}


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


def parser() -> argparse.ArgumentParser:
    """All flags, with what the environment says as their defaults."""
    top = argparse.ArgumentParser(
        prog="ducktail",
        description="Change streams for DuckDB, spoken as SQL over the Postgres wire.",
        epilog="Try `ducktail COMMAND --help`.",
    )
    top.add_argument("--version", action="version", version=f"ducktail {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a DuckDB file over the Postgres wire",
        description=SERVE_ABOUT,
        epilog=SERVE_AFTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(serve)
    _maintenance(commands)
    pipeline = commands.add_parser(
        "pipeline",
        help="run a Spark pipeline over a stream",
        description="Run a pipeline on Spark until SIGTERM or SIGINT, or with --once until what is there "
        "has been read. It goes on from its checkpoint, and shows how far it is in ducktail.pipelines.",
    )
    pipeline_command.add_arguments(pipeline)
    cluster = commands.add_parser(
        "cluster",
        help="plan and apply the placement of a cluster",
        description="Work on the cluster.toml of several nodes. Source: docs/cluster.md.",
    )
    cluster_command.add_arguments(cluster)
    return top


class _Target(argparse.Action):
    """Takes a path, with or without the word TO before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        match list(values or ()):
            case [path] | ["TO" | "to", path] if str(path) not in ("TO", "to"):
                namespace.to = Path(str(path))
            case _:
                raise argparse.ArgumentError(self, "expected one path, with or without TO before it")


def _maintenance(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of check, backup, restore and reset-commit-times."""
    check = commands.add_parser(
        "check",
        help="look for damage in a database file that nobody has open",
        description="Read a closed database file whole, change nothing, and say what it is. "
        "Exit code 1 if anything in it is damaged or missing.",
    )
    check.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file")
    backup = commands.add_parser(
        "backup",
        help="copy a database, served or not, into one verified file",
        description="Copy a database into one new file, as of one moment; "
        "writers of a served one do not wait.",
    )
    backup.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file")
    restore = commands.add_parser(
        "restore",
        help="make a database of a backup",
        description="Make a database of a backup. Its LSNs go on in a new incarnation.",
    )
    restore.add_argument("backup", type=Path, metavar="BACKUP", help="the backup")
    for command, source, to in (
        (backup, "PATH", "the backup's file, not there yet"),
        (restore, "BACKUP", "the database's file"),
    ):
        command.add_argument("to", nargs="+", action=_Target, metavar="DEST", help=to)
        command.usage = f"{command.prog} [-h] [--log-level LEVEL] {source} [TO] DEST"
    reset = commands.add_parser(
        "reset-commit-times",
        help="end the state in which commit times are ahead of the clock",
        description="Set the commit times of a closed database that are later than the machine's clock "
        "to what it says; events and their order stay.",
    )
    reset.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file")
    for command in (check, backup, restore, reset):
        add_flag(command, MAINTENANCE_LEVEL)


def _line(error: DucktailError) -> str:
    parts = [error.message, *(part for part in (error.detail, error.hint) if part)]
    return "; ".join(" ".join(part.split()) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
