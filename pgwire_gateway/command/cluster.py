"""The command `ducktail cluster`: plans a placement, installs it on all nodes, writes users files."""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...engine.catalog.passwords import SALT_BYTES, verifier_of
from ...engine.catalog.rights import User
from ...engine.cluster.users import read_users, render_users
from ...engine.errors import DucktailError, InvalidParameterValue
from ...engine.placement.cluster_file import WHAT as CLUSTER_FILE
from ...engine.placement.cluster_file import (
    ClusterFile,
    FilePlacement,
    PartitionMove,
    partition_moves,
    read_cluster_file,
    read_cluster_text,
    render,
    write_file,
)
from ...engine.placement.placement import Node, Rule, read_ranges
from ...engine.placement.placement_plan import plan
from ...engine.toml_file import read_text

T = TypeVar("T")

# A node that does not answer within this time is reported as away.
CONNECT_TIMEOUT_S = 5
# The maximum number of a node's tables or streams that are named.
SHOWN_MAX = 5
# The maximum wait of apply for arriving partitions, and the interval of its checks.
ARRIVE_S, LOOK_S = 60.0, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `ducktail cluster`."""
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    planned = commands.add_parser(
        "plan",
        help="plan the placement of partitions when nodes join or leave",
        description="Balance the partitions of each rule over the nodes, with the least number of moves. "
        "Prints the moves, and writes the new file, whose epoch is one higher; it changes no node. The exit "
        "code is 1 if a node that --remove names still has tables or streams, or does not answer.",
    )
    planned.add_argument("file", type=Path, metavar="FILE", help="the cluster.toml")
    planned.add_argument("--add", metavar="NODE", help="a node to add; with --host and --port")
    planned.add_argument("--host", help="host of the new node")
    planned.add_argument("--port", type=int, help="port of the new node")
    planned.add_argument(
        "--remove", action="append", default=[], metavar="NODE", help="a node to remove; repeatable"
    )
    planned.add_argument(
        "--lost", action="append", default=[], metavar="NODE",
        help="a node to remove whose database file is lost: its events are given up, and its partitions "
        "begin anew; repeatable",
    )  # fmt: skip
    planned.add_argument(
        "--output", type=Path, metavar="FILE", help="the new file (default: standard output)"
    )
    planned.add_argument(
        "--idempotent", action="store_true",
        help="adding an existing node or removing an unknown one is no error",
    )  # fmt: skip
    applied = commands.add_parser(
        "apply",
        help="send a cluster.toml to all nodes",
        description="Send the file to every node that it names, and to those that leave: first to the nodes "
        "that lose partitions, so that none has two owners. Safe to run again. The exit code is 1 if a node "
        "did not accept it.",
    )
    applied.add_argument("file", type=Path, metavar="FILE", help="the cluster.toml")
    applied.add_argument(
        "--without", action="append", default=[], metavar="NODE",
        help="a node that is known to be down: others may take over its partitions; repeatable",
    )  # fmt: skip
    user = commands.add_parser(
        "user",
        help="add a user to a users file, or remove one",
        description="Write a user to a users.toml, with a verifier and never the password itself. The "
        "password is the first line of standard input, or is prompted for.",
    )
    user.add_argument("file", type=Path, metavar="FILE", help="the users.toml; created if it does not exist")
    user.add_argument("name", metavar="NAME", help="the user")
    user.add_argument("--superuser", action="store_true", help="grant all rights")
    user.add_argument("--remove", action="store_true", help="remove the user")


def run_command(chosen: argparse.Namespace) -> int:
    """Run `ducktail cluster` and return the exit status.

    Raises:
        DucktailError: the file or the request is invalid.
    """
    return COMMANDS[chosen.what](chosen)


# Plan.


def _plan(chosen: argparse.Namespace) -> int:
    file = read_cluster_file(chosen.file)
    if chosen.add is None and (chosen.host is not None or chosen.port is not None):
        raise InvalidParameterValue("--host and --port are those of the node that --add names")
    if chosen.add is None and not (chosen.remove or chosen.lost or chosen.idempotent):
        hint = "Or --idempotent, to balance the nodes that there are."
        raise InvalidParameterValue("--add, --remove or --lost says what changes", hint=hint)
    add = [] if chosen.add is None else [_new_node(file, chosen)]
    made = plan(file, add, chosen.remove, lost=chosen.lost, idempotent=chosen.idempotent)
    text = render(made.file)
    # Reading the result detects invalid names and ports.
    read_cluster_text(text, "the planned file")
    told = [*(f"add {name}" for name in made.added), *(f"remove {name}" for name in made.removed)]
    told += [f"move {_shown(move)}" for move in made.moves]
    told += [f"what {name} had is given up: its partitions begin anew" for name in made.lost]
    giving = sorted({move.source for move in made.moves} & set(made.removed) - set(made.file.lost))
    if giving:
        told.append(
            f"events come from {', '.join(giving)}: it must run until `ducktail cluster apply` has ended "
            "with exit code 0"
        )
    told.append(
        "nothing to do"
        if made.empty
        else f"{_count(len(made.moves), 'move')}, epoch {file.epoch} -> {made.file.epoch}"
    )
    print("\n".join(told), file=sys.stderr if chosen.output is None else sys.stdout)
    if chosen.output is None:
        print(text, end="")
    else:
        write_file(chosen.output, text)
    going = [node for node in file.nodes if node.name in made.removed and node.name not in made.lost]
    kept = [line for node in _placed(file, going, chosen.file.parent).values() for line in _keeps(node)]
    for line in kept:
        print(line, file=sys.stderr)
    return 1 if kept else 0


def _keeps(node: Node) -> list[str]:
    """Lines about the tables and streams of a node that do not move, or why they are unknown."""

    def look(connection: Any) -> tuple[list[str], list[str]]:
        tables = connection.execute(
            "SELECT schema_name || '.' || table_name FROM system.main.duckdb_tables() WHERE NOT internal "
            "AND NOT temporary AND database_name = current_database() AND schema_name <> 'ducktail' "
            "ORDER BY ALL"
        ).fetchall()
        streams = connection.execute(
            "SELECT schema_name || '.' || stream_name FROM ducktail.streams WHERE table_name IS NOT NULL "
            "ORDER BY ALL"
        ).fetchall()
        return [name for (name,) in tables], [name for (name,) in streams]

    try:
        tables, streams = _on(node, look)
    except (DucktailError, _Away) as error:
        return [f"{node.name}: it is not known whether it still has tables and streams: {error}"]
    return [
        f"{node.name} still has {_count(len(names), of)}, which do{'es' * (len(names) == 1)} not move: "
        f"{_some(names)}"
        for names, of in ((tables, "table"), (streams, "stream"))
        if names
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def _new_node(file: ClusterFile, chosen: argparse.Namespace) -> Node:
    known = file.node(chosen.add)
    if known is not None and chosen.host is None and chosen.port is None:
        return known
    if chosen.host is None or chosen.port is None:
        raise InvalidParameterValue("--add wants --host and --port")
    return Node(chosen.add, chosen.host, chosen.port, **file.defaults)


def _shown(move: PartitionMove) -> str:
    return f"{move.rule} partition {move.partition}: {move.source} -> {move.target}"


def _count(count: int, of: str) -> str:
    return f"{count} {of}{'' if count == 1 else 's'}"


# Apply.


@dataclass(frozen=True, slots=True)
class Present:
    """The placement in force on a reachable node."""

    epoch: int
    rules: tuple[Rule, ...]
    nodes: Mapping[str, tuple[str, int]]


class _Away(Exception):
    """A node does not answer."""


def _apply(chosen: argparse.Namespace) -> int:
    text = read_text(chosen.file, CLUSTER_FILE)
    file = read_cluster_text(text, str(chosen.file))
    nodes = _placed(file, file.nodes, chosen.file.parent)
    present: dict[str, Present] = {}
    away = _ask(nodes, present)
    # Leaving nodes are only in the older placements.
    known = {name: place for one in present.values() for name, place in one.nodes.items()}
    leaving = [
        Node(name, host, port, **file.defaults)
        for name, (host, port) in sorted(known.items())
        if name not in nodes and name not in file.lost
    ]
    left = _placed(file, leaving, chosen.file.parent)
    away |= _ask(left, present)
    nodes |= left
    older = [one for one in present.values() if one.epoch < file.epoch]
    moved = {move for one in older for move in partition_moves(one.rules, file.rules)}
    losers = sorted({move.source for move in moved} & nodes.keys())
    # A node with a supposedly lost file may be alive: it is told before others get its partitions.
    gone = [
        Node(name, host, port, **file.defaults) for name, (host, port) in known.items() if name in file.lost
    ]
    for node in _placed(file, gone, chosen.file.parent).values():
        if _install(node, text) is None:
            print(f"{node.name} is alive: what it had is given up all the same")
    failed = _install_all(nodes, losers, away, text, frozenset(chosen.without))
    print(f"{_count(len(moved), 'partition')} moved by epoch {file.epoch}")
    taken = sorted(nodes.keys() - failed)
    if taken:
        print(
            f"{chosen.file} is in force on {', '.join(taken)}, each of which has written it as its "
            "cluster.toml: the next plan begins with it"
        )
    # An interrupted run may have left some partitions on their way.
    left_behind = not failed - set(chosen.without) and not _have_come(
        {name: node for name, node in nodes.items() if name not in failed}
    )
    if failed:
        print(f"not on {', '.join(sorted(failed))}: run it again when they are back", file=sys.stderr)
    # A node that has left, and is reported to be down, is not waited for.
    return 1 if left_behind or failed - (left.keys() & set(chosen.without)) else 0


def _install_all(
    nodes: Mapping[str, Node],
    losers: Sequence[str],
    away: Mapping[str, str],
    text: str,
    without: frozenset[str],
) -> set[str]:
    """Install the file on all nodes, losers of partitions first; return the names of nodes without it."""
    failed = set(away)
    for name in [*losers, *sorted(nodes.keys() - set(losers))]:
        blocked = sorted((failed & set(losers)) - without)
        if blocked and name not in losers:
            print(
                f"{', '.join(blocked)} would lose partitions and did not take the file, so the others are "
                "not told: a partition would have two owners. If it is known to be down: "
                f"--without {blocked[0]}",
                file=sys.stderr,
            )
            return failed | (nodes.keys() - set(losers))
        why = away.get(name) or _install(nodes[name], text)
        if why is not None:
            failed.add(name)
            print(f"{name}: {why}", file=sys.stderr)
    return failed


def _have_come(nodes: Mapping[str, Node]) -> bool:
    """Wait until every node has its partitions; report those that are missing after ARRIVE_S seconds."""
    ends_s = time.monotonic() + ARRIVE_S
    while left := [line for name, node in sorted(nodes.items()) for line in _on_its_way(name, node)]:
        if time.monotonic() > ends_s:
            print("not all partitions have come to their nodes yet:", *left, sep="\n  ", file=sys.stderr)
            print("do not stop the nodes that have them, nor delete their files", file=sys.stderr)
            return False
        time.sleep(LOOK_S)
    return True


def _on_its_way(name: str, node: Node) -> list[str]:
    """Partitions that are still on their way to or from a node, one line for each topic."""

    def look(connection: Any) -> list[tuple[str, str, str, str]]:
        rows: list[tuple[str, str, str, str]] = connection.execute(
            "SELECT schema_name, stream_name, log, string_agg(partition::VARCHAR, ', ' ORDER BY partition) "
            "FROM ducktail.partitions WHERE log IN ('coming', 'leaving') GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        return rows

    try:
        rows = _on(node, look)
    except (DucktailError, _Away) as error:
        return [f"{name}: {error}"]
    words = {"coming": "are to come to", "leaving": "are still on"}
    return [f"{schema}.{topic}: partitions {some} {words[log]} {name}" for schema, topic, log, some in rows]


def _placed(file: ClusterFile, nodes: Sequence[Node], folder: Path) -> dict[str, Node]:
    """Nodes with the present paths of their files, by name."""
    placed = FilePlacement(replace(file, nodes=tuple(nodes)), file.nodes[0], folder)
    return {node.name: node for node in placed.nodes}


def _ask(nodes: Mapping[str, Node], present: dict[str, Present]) -> dict[str, str]:
    """The placement in force on each of these nodes, or the reason why it is unknown."""
    away = {}
    for name, node in nodes.items():
        try:
            present[name] = _on(node, _present)
        except (DucktailError, _Away) as error:
            away[name] = str(error)
    return away


def _install(node: Node, text: str) -> str | None:
    """Install the file on a node; return the reason of a failure, or None."""

    def install(connection: Any) -> tuple[str, int, int, bool]:
        from psycopg import sql

        # A literal, because psycopg's own parameters may have another type than a string.
        asked = sql.SQL("INSTALL PLACEMENT {}").format(sql.Literal(text))
        row: tuple[str, int, int, bool] = connection.execute(asked).fetchone()
        return row

    try:
        name, epoch, moved, new = _on(node, install)
    except (DucktailError, _Away) as error:
        return str(error)
    if name != node.name:
        return f"at {node.host}:{node.port} is node {name}"
    print(f"{name}: epoch {epoch}, {_count(moved, 'move') if new else 'had it already'}")
    return None


def _present(connection: Any) -> Present:
    rows = connection.execute(
        "SELECT rule, topics, node, partitions, epoch FROM ducktail.placement ORDER BY rule"
    ).fetchall()
    owners: dict[tuple[int, str], dict[int, str]] = {}
    for number, topics, node, partitions, _ in rows:
        owners.setdefault((number, topics), {}).update(dict.fromkeys(read_ranges(partitions), node))
    rules = tuple(_rule(topics, of) for (_, topics), of in owners.items())
    nodes = connection.execute("SELECT node, host, port, local, epoch FROM ducktail.nodes").fetchall()
    [epoch] = [epoch for *_, local, epoch in nodes if local]
    return Present(epoch, rules, {name: (host, port) for name, host, port, *_ in nodes if host is not None})


def _rule(topics: str, owners: Mapping[int, str]) -> Rule:
    return Rule(topics, tuple(owners[partition] for partition in range(len(owners))))


def _on(node: Node, work: Callable[[Any], T]) -> T:
    """Run a function with a connection to a node."""
    import psycopg  # Imported here: only this command is a client of a server.

    try:
        connection = psycopg.connect(
            **node.conninfo(),
            application_name="ducktail cluster",
            connect_timeout=CONNECT_TIMEOUT_S,
            autocommit=True,
        )
    except psycopg.OperationalError as error:
        raise _Away(f"cannot be reached: {' '.join(str(error).split())}") from None
    try:
        with connection:
            return work(connection)
    except psycopg.Error as error:
        told = [error.diag.message_primary or str(error), error.diag.message_detail]
        raise _Away("; ".join(" ".join(part.split()) for part in told if part)) from None


# Users.


def _user(chosen: argparse.Namespace) -> int:
    users = read_users(chosen.file) if chosen.file.exists() else {}
    key = chosen.name.lower()
    if chosen.remove:
        if users.pop(key, None) is None:
            raise InvalidParameterValue(f'{chosen.file}: no user "{chosen.name}"')
    else:
        verifier = verifier_of(_password(chosen.name), secrets.token_bytes(SALT_BYTES))
        users[key] = User(chosen.name, verifier, chosen.superuser)
    if not any(user.superuser for user in users.values()):
        raise InvalidParameterValue("a users file wants a superuser", hint="Put one in first: --superuser.")
    write_file(chosen.file, render_users(users.values()))
    print(f"{chosen.file}: {_count(len(users), 'user')}")
    return 0


def _password(name: str) -> str:
    """Read a new password twice; an empty one raises InvalidParameterValue."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidParameterValue("the password is empty")
    return password


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"plan": _plan, "apply": _apply, "user": _user}
