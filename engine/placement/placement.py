"""Placements: the nodes of a cluster, the rules of partition ownership, and the placement of a single node.

A topic's partitions are on the nodes that the placement defines. A stream on a table has its partitions on
the node of the table, so it does not need the placement.

A rule assigns partitions of the topics that match its name to nodes; the first matching rule of the file
applies. A rule for one topic lists each of its partitions, and other partitions have no owner. A rule with
`*` is for topics of any size: it distributes partitions in turn, so that partition p has the owner of the
rule's entry p % entries. A node is one server with its own database file, at the address by which the others
reach it. `cluster_file.py` has the placement of a cluster.toml. Source: docs/cluster.md, "The file".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..catalog.streams import PARTITIONS_MAX
from ..errors import InvalidParameterValue, IoError
from ..quoting import fold

_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")
OFF, REQUIRE, VERIFY_FULL = "off", "require", "verify-full"
TLS = (OFF, REQUIRE, VERIFY_FULL)
_SSLMODES = {OFF: "disable", REQUIRE: "require", VERIFY_FULL: "verify-full"}
# Every server's database has this name in addition to its own.
DATABASE = "ducktail"
LOCAL_NAME = "local"
# Longer than any password; a larger file is not a password file.
PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of partition ownership.

    Args:
        name: schema and topic, in which `*` stands for any characters: 'main.orders', 'main.*', '*'.
        owners: the names of the nodes by entry.
    """

    name: str
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.name and 1 <= len(self.owners) <= PARTITIONS_MAX

    @property
    def deals(self) -> bool:
        """True if the rule is for topics of any size."""
        return "*" in self.name

    def fits(self, key: str) -> bool:
        """True if it matches a topic, `schema.topic` in lower case, or all topics of a name with `*`."""
        pattern = ".*".join(map(re.escape, fold(self.name).split("*")))
        return re.fullmatch(pattern, key, re.DOTALL) is not None

    def owner(self, partition: int) -> str | None:
        """The name of the node that owns a partition, or None."""
        if self.deals:
            return self.owners[partition % len(self.owners)]
        return self.owners[partition] if partition < len(self.owners) else None

    def partitions_of(self, node: str) -> tuple[int, ...]:
        """The entries of a node."""
        return tuple(place for place, owner in enumerate(self.owners) if owner == node)


def full_name(name: str) -> str:
    """A rule's name with its schema: main by default; `*` alone matches every topic."""
    return name if "." in name or name == "*" else f"main.{name}"


def read_ranges(text: str) -> list[int]:
    """The partitions listed in a text like '0-3, 8', in its order.

    Raises:
        ValueError: the text is malformed, or lists a partition beyond the limit of a topic.
    """
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"not partitions like '0-3, 8': {text!r}")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise ValueError(f"a range that goes down: {part.strip()!r}")
        if last >= PARTITIONS_MAX:
            raise ValueError(
                f"a topic has at most {PARTITIONS_MAX} partitions, 0 to {PARTITIONS_MAX - 1}: "
                f"{part.strip()!r}"
            )
        numbers.extend(range(first, last + 1))
    return numbers


def ranges_text(numbers: Iterable[int]) -> str:
    """The text of partitions: sorted, as ranges."""
    parts: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Args:
        name: its name in the cluster.
        host: the host by which the other nodes reach it; "" for a single node.
        tls: 'off', 'require' (encrypted) or 'verify-full' (its certificate is checked as well).
        ca: the trusted certificates for 'verify-full', PEM; None for those of the system.
        user: the user as which the others connect; None if it has no users.
        password_file: a file with that user's password; read at each connection.
        password_env: an environment variable with the password instead.
    """

    name: str
    host: str
    port: int
    tls: str = OFF
    ca: str | None = None
    user: str | None = None
    password_file: str | None = None
    password_env: str | None = None

    def conninfo(self) -> dict[str, Any]:
        """The libpq parameters to connect to it, without those of a single connection.

        Raises:
            IoError, InvalidParameterValue: as in `password`.
        """
        return {
            "host": self.host,
            "port": self.port,
            "dbname": DATABASE,
            "user": self.user or DATABASE,
            "password": self.password(),
            "sslmode": _SSLMODES[self.tls],
            "sslrootcert": (self.ca or "system") if self.tls == VERIFY_FULL else None,
            "gssencmode": "disable",
        }

    def password(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The password of the user as which others connect to it; None without one.

        Raises:
            IoError: its file cannot be read.
            InvalidParameterValue: the variable is not set.
        """
        if self.password_file is not None:
            try:
                with Path(self.password_file).open("rb") as file:
                    return file.read(PASSWORD_BYTES_MAX).decode().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = (getattr(error, "strerror", None) or str(error)).lower()
                raise IoError(
                    f'cannot read the password file of node "{self.name}", "{self.password_file}": {reason}'
                ) from None
        if self.password_env is not None:
            found = environment.get(self.password_env)
            if not found:
                raise InvalidParameterValue(
                    f'the password of node "{self.name}" is not set: {self.password_env} in the environment'
                )
            return found
        return None


# The only node without a cluster.
LOCAL = Node(LOCAL_NAME, "", 0)


class Placement(Protocol):
    """An immutable placement of all topics' partitions; a newer one replaces it."""

    @property
    def epoch(self) -> int:
        """The number of the placement: the higher is the newer; 0 without a cluster."""

    @property
    def cluster(self) -> str:
        """The cluster's name; "" without one."""

    @property
    def local(self) -> Node:
        """This node."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, including this one, by name."""

    @property
    def users(self) -> str | None:
        """The file of users of all nodes; None if each node has its own users."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the placement, in the order in which they are tried."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Former nodes whose database files are lost, with the events in them."""

    @property
    def digest(self) -> str:
        """A hash of its contents, equal on all nodes: placements of one epoch must have one digest."""

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """The node that owns a partition of a topic.

        Raises:
            WrongState: no node owns the partition.
        """

    def home(self, schema: str, stream: str) -> Node:
        """The node of a topic's definition and group coordination: the owner of partition 0.

        Raises:
            WrongState: no node owns the partition.
        """

    def moves_from(self, old: Placement) -> int:
        """The number of partitions in the placement with another owner than in an older one."""


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """The placement of a single node, which owns everything."""

    local: Node = LOCAL
    epoch: int = 0
    cluster: str = ""
    digest: str = ""
    users: str | None = None
    lost: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The only node."""
        return (self.local,)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """No rules."""
        return (Rule("*", (self.local.name,)),)

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """The only node."""
        return self.local

    def home(self, schema: str, stream: str) -> Node:
        """The only node."""
        return self.local

    def moves_from(self, old: Placement) -> int:
        """0: a single node has no moves."""
        return 0
