"""The command `ducktail`: serve a database, check it, back it up, restore it.

Every flag can be set in the environment as well, `--lock-timeout-ms` as `DUCKTAIL_LOCK_TIMEOUT_MS`;
a flag goes before the environment. Only --accept-loss and --insecure cannot: they are to be said aloud.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__, maintenance
from .engine.database import Database
from .engine.errors import DucktailError, InvalidParameterValue
from .engine.settings import Settings, numbers
from .pgwire_gateway import Server, TlsFiles, listen

PATH = "ducktail.duckdb"
HOST = "127.0.0.1"
PORT = 5480
LOG_LEVELS = ("debug", "info", "warning", "error")

SERVE_ABOUT = """\
Opens (or makes) the DuckDB file PATH and serves it over the Postgres wire until SIGTERM or SIGINT.
When it is ready it prints one line, `listening on HOST:PORT`, on standard output; logs go to
standard error. The database is called by its file's stem, and answers to the names `ducktail` and
`postgres` as well."""
SERVE_AFTER = """\
environment: each flag but --accept-loss and --insecure also as DUCKTAIL_ and its name: DUCKTAIL_PORT=5481.

example:
  ducktail serve shop.duckdb &
  psql -h 127.0.0.1 -p 5480 -d shop"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 fine, 1 it could not be done, 2 a wrong flag."""
    chosen = parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=chosen.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return int(COMMANDS[chosen.command](chosen))
    except DucktailError as error:
        print(f"ducktail: {_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before the server was ready to end in its own way.
        return 130


def _run_server(chosen: argparse.Namespace) -> int:
    settings = Settings(
        allowed_directories=tuple(chosen.allow_dir),
        **{item.name: getattr(chosen, item.name) for item in numbers()},
    )
    tls = _tls(chosen)
    listener = listen(chosen.host, chosen.port, elsewhere=tls is not None or chosen.insecure)
    try:
        if tls is not None:
            tls.load()  # What cannot be used is told before a file is made.
        database = Database.open(str(chosen.path), settings, accept_loss=chosen.accept_loss)
    except BaseException:
        listener.close()
        raise
    try:
        asyncio.run(_serve(Server(database, listener, tls, insecure=chosen.insecure)))
    finally:
        database.close()
    return 0


def _tls(chosen: argparse.Namespace) -> TlsFiles | None:
    """Where certificate and key are; None: no TLS.

    Raises:
        InvalidParameterValue: 22023, one without the other.
    """
    if (chosen.tls_cert is None) != (chosen.tls_key is None):
        raise InvalidParameterValue("--tls-cert and --tls-key go together")
    return None if chosen.tls_cert is None else TlsFiles(chosen.tls_cert, chosen.tls_key)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _run_server,
    "check": lambda chosen: maintenance.check(chosen.path),
    "backup": lambda chosen: maintenance.make_backup(chosen.path, chosen.to),
    "restore": lambda chosen: maintenance.restore(chosen.backup, chosen.to),
}


async def _serve(server: Server) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    await server.start()
    host, port = server.address
    print(f"listening on {f'[{host}]' if ':' in host else host}:{port}", flush=True)
    await stop.wait()
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
    serve.add_argument(
        "path", nargs="?", type=Path, default=_environment("path", PATH), metavar="PATH",
        help=f"the DuckDB file (default: {PATH} in the current directory)",
    )  # fmt: skip
    serve.add_argument(
        "--host",
        default=_environment("host", HOST),
        help="address to listen on; one that others can reach wants TLS and users (default: %(default)s)",
    )
    serve.add_argument(
        "--port", type=_port, default=_environment("port", PORT),
        help="TCP port, 0 for any free one (default: %(default)s)",
    )  # fmt: skip
    serve.add_argument(
        "--tls-cert", default=_environment("tls_cert", None), metavar="FILE",
        help="certificate for TLS, with its chain, as PEM; read again on SIGHUP",
    )  # fmt: skip
    serve.add_argument(
        "--tls-key", default=_environment("tls_key", None), metavar="FILE",
        help="the certificate's key, as PEM, without a passphrase",
    )  # fmt: skip
    serve.add_argument(
        "--insecure", action="store_true",
        help="let whoever reaches the port in as if he were on this machine: no TLS, and no password "
        "while there is no user",
    )  # fmt: skip
    serve.add_argument(
        "--log-level", type=_level, default=_environment("log_level", "info"), metavar="LEVEL",
        help=f"least level that is logged: {', '.join(LOG_LEVELS)} (default: %(default)s)",
    )  # fmt: skip
    serve.add_argument(
        "--allow-dir", action="append", default=_directories(), metavar="DIR",
        help="a directory whose files SQL may read and write, with all below it; may be repeated",
    )  # fmt: skip
    serve.add_argument(
        "--accept-loss", action="store_true",
        help="serve a database although commits that were acknowledged are missing from it",
    )  # fmt: skip
    for item in numbers():
        serve.add_argument(
            f"--{item.name.replace('_', '-')}", type=_whole, default=_environment(item.name, item.default),
            metavar="N", help=f"{item.metadata['about']} (default: %(default)s)",
        )  # fmt: skip
    _maintenance(commands)
    return top


def _maintenance(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of check, backup and restore."""
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
    for command, to in ((backup, "the backup's file, not there yet"), (restore, "the database's file")):
        command.add_argument("word", choices=("TO", "to"), metavar="TO", help="the word TO")
        command.add_argument("to", type=Path, metavar="DEST", help=to)
    for command in (check, backup, restore):
        command.add_argument(
            "--log-level", type=_level, default=_environment("log_level", "warning"), metavar="LEVEL",
            help=f"least level that is logged: {', '.join(LOG_LEVELS)} (default: %(default)s)",
        )  # fmt: skip


def _environment(name: str, otherwise: object) -> object:
    # argparse runs a default that is a string through the flag's own type.
    return os.environ.get(f"DUCKTAIL_{name.upper()}", otherwise)


def _directories() -> list[str]:
    # Several are parted as in PATH.
    return [part for part in os.environ.get("DUCKTAIL_ALLOW_DIR", "").split(os.pathsep) if part]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None


def _port(text: str) -> int:
    port = _whole(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"not a port from 0 to 65535: {port}")
    return port


def _level(text: str) -> str:
    # Not `choices`: argparse does not hold a default, here the environment, against those.
    if text not in LOG_LEVELS:
        raise argparse.ArgumentTypeError(f"not one of {', '.join(LOG_LEVELS)}: {text!r}")
    return text


def _line(error: DucktailError) -> str:
    parts = [error.message, *(part for part in (error.detail, error.hint) if part)]
    return "; ".join(" ".join(part.split()) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
