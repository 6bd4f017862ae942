"""The command line of `ducktail`: its commands, their flags, their exit status.

`serve` is in serve.py, the commands on a closed file and on backups in maintenance.py, `cluster` in
cluster.py, `standby` and `promote` in standby.py; the settings of `serve` are in configuration.py. Commands
of other packages come as `Subcommand`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.errors import DucktailError
from ...engine.server_log import TEXT, set_up
from ...engine.version import VERSION
from . import cluster, maintenance, standby
from .configuration import LOG_LEVEL, add_flag, add_flags, setting_of
from .serve import run_server

# A command that prints its findings logs only errors.
MAINTENANCE_LEVEL = replace(LOG_LEVEL, default="warning")

SERVE_ABOUT = """\
Opens (or creates) the DuckDB file PATH and serves it over the Postgres wire until SIGTERM or SIGINT.
When the server is ready it prints one line, `listening on HOST:PORT, file PATH`, on standard output; logs
go to standard error. The name of the database is the stem of the file name; `ducktail` and `postgres` are
accepted as well."""
SERVE_AFTER = """\
Each flag except --accept-loss and --insecure can also be set in the environment, as DUCKTAIL_ and its name
(DUCKTAIL_PORT=5481), and in the file that --config names (port = 5481). Flags override the environment,
and the environment overrides the file.

example:
  ducktail serve shop.duckdb &
  psql -h 127.0.0.1 -p 5480 -d shop"""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command that another package adds to the command line.

    Args:
        add_arguments: adds its flags to a parser.
        run: does the work and returns the exit status.
    """

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_command_line(arguments: Sequence[str] | None = None, extensions: Sequence[Subcommand] = ()) -> int:
    """Run one command and return the exit status: 0 success, 1 failure, 2 invalid flags.

    Args:
        arguments: the arguments without the program's name; None for those of the process.
        extensions: commands of other packages.
    """
    chosen = parser(extensions).parse_args(arguments)
    commands = COMMANDS | {extension.name: extension.run for extension in extensions}
    try:
        return commands[chosen.command](chosen)
    except DucktailError as error:
        print(f"ducktail: {_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # A signal before the server could handle it.
        return 130


def _maintain(work: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command on a database file, with its logs set up."""

    def run(chosen: argparse.Namespace) -> int:
        set_up(sys.stderr, setting_of(MAINTENANCE_LEVEL, vars(chosen), os.environ), TEXT)
        return work(chosen)

    return run


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": run_server,
    "check": _maintain(lambda chosen: maintenance.check(chosen.path, chosen.temporary)),
    "backup": _maintain(lambda chosen: maintenance.make_backup(chosen.path, chosen.to)),
    "restore": _maintain(lambda chosen: maintenance.restore(chosen.backup, chosen.to, chosen.at, chosen.lsn)),
    "reset-commit-times": _maintain(lambda chosen: maintenance.reset_commit_times(chosen.path)),
    "standby": standby.run_standby,
    "promote": _maintain(standby.promote),
    "cluster": cluster.run_command,
}


def parser(extensions: Sequence[Subcommand] = ()) -> argparse.ArgumentParser:
    """The parser of all flags, whose defaults come from the environment.

    Args:
        extensions: commands of other packages.
    """
    top = argparse.ArgumentParser(
        prog="ducktail",
        description="Change streams for DuckDB, spoken as SQL over the Postgres wire.",
        epilog="Try `ducktail COMMAND --help`.",
    )
    top.add_argument("--version", action="version", version=f"ducktail {VERSION}")
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
    _standby(commands)
    for extension in extensions:
        added = commands.add_parser(extension.name, help=extension.help, description=extension.description)
        extension.add_arguments(added)
    placement = commands.add_parser(
        "cluster",
        help="plan and apply the placement of a cluster",
        description="Work on the cluster.toml of several nodes. Source: docs/cluster.md.",
    )
    cluster.add_arguments(placement)
    return top


class _Target(argparse.Action):
    """Accept a path, with or without the word TO before it."""

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
        help="check a closed database file, or a continuous copy, for damage",
        description="Read a closed database file or a continuous copy completely and report its state, "
        "without changing it. The exit code is 1 if anything in it is damaged or missing.",
    )
    check.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file, or the directory of a copy")
    check.add_argument(
        "--temporary",
        type=Path,
        metavar="DIR",
        help="the directory in which a copy is restored for the check",
    )
    backup = commands.add_parser(
        "backup",
        help="copy a database, served or not, into one verified file",
        description="Copy a database into one new file, as of one moment; "
        "writers of a served database do not wait.",
    )
    backup.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file")
    restore = commands.add_parser(
        "restore",
        help="create a database from a backup or a continuous copy",
        description="Create a database from a backup, or from a continuous copy as of a moment. "
        "Its LSNs continue in a new incarnation.",
    )
    restore.add_argument(
        "backup", type=Path, metavar="BACKUP", help="the backup, or the directory of a continuous copy"
    )
    moment = restore.add_mutually_exclusive_group()
    moment.add_argument(
        "--at", metavar="TIME", help="of a continuous copy: the transactions up to this time (UTC)"
    )
    moment.add_argument("--lsn", type=int, metavar="N", help="of a continuous copy: those up to this LSN")
    moment.add_argument(
        "--latest", action="store_true", help="of a continuous copy: all transactions, which is the default"
    )
    for command, source, to in (
        (backup, "PATH", "the file of the backup, which must not exist"),
        (restore, "BACKUP", "the database's file"),
    ):
        command.add_argument("to", nargs="+", action=_Target, metavar="DEST", help=to)
        options = " [--at TIME | --lsn N | --latest]" if command is restore else ""
        command.usage = f"{command.prog} [-h] [--log-level LEVEL]{options} {source} [TO] DEST"
    reset = commands.add_parser(
        "reset-commit-times",
        help="correct commit times that are ahead of the clock",
        description="Set the commit times of a closed database that are later than the machine's clock "
        "to the clock's time; events and their order do not change.",
    )
    reset.add_argument("path", type=Path, metavar="PATH", help="the DuckDB file")
    for command in (check, backup, restore, reset):
        add_flag(command, MAINTENANCE_LEVEL)


def _standby(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of standby and promote."""
    follows = commands.add_parser(
        "standby",
        help="follow the continuous copy of another server, to take its place",
        description="Follow the directory to which another server copies its database, and refuse clients "
        "with 57P03, until `ducktail promote` lets it serve PATH. It accepts all flags of serve.",
    )
    add_flags(follows)
    promote = commands.add_parser(
        "promote",
        help="let a standby take the place of its primary",
        description="Let the running standby of PATH apply what the directory has, fence the old primary, "
        "begin a new incarnation and serve.",
    )
    standby.add_arguments(follows, promote)
    add_flag(promote, MAINTENANCE_LEVEL)


def _line(error: DucktailError) -> str:
    parts = [error.message, *(part for part in (error.detail, error.hint) if part)]
    return "; ".join(" ".join(part.split()) for part in parts)
