"""Placements: the nodes of a cluster, the rules of who owns which partition, and a single node's answer.

A topic's partitions lie where the placement says. A stream on a table has its partitions where the table
is, so the placement is not asked for them.

A rule says which node owns which partitions of the topics whose names it fits; the first rule of the file
that fits a topic's name counts. A rule for one topic says where each of its partitions is, and no other
partition has an owner. A rule with `*` is for topics of any size: it deals its places round, so that
partition p lies where its place p % places does. A node is one server with its own database file, at the
address where the others reach it. `cluster_file.py` has the placement of a cluster.toml. Source:
docs/cluster.md, "The file".
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
# Every server's database has this name besides its own.
DATABASE = "ducktail"
LOCAL_NAME = "local"
# Nobody's password is as long; what is larger is some other file.
PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Rule:
    """See the head of the file.

    Args:
        name: schema and topic, in which `*` stands for any characters: 'main.orders', 'main.*', '*'.
        owners: the names of the nodes, by place.
    """

    name: str
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.name and 1 <= len(self.owners) <= PARTITIONS_MAX

    @property
    def deals(self) -> bool:
        """True if it is for topics of any size."""
        return "*" in self.name

    def fits(self, key: str) -> bool:
        """True if it is for a topic, `schema.topic` in small letters, or for all of a name with `*`."""
        pattern = ".*".join(map(re.escape, fold(self.name).split("*")))
        return re.fullmatch(pattern, key, re.DOTALL) is not None

    def owner(self, partition: int) -> str | None:
        """The name of the node that owns a partition; None: no node does."""
        if self.deals:
            return self.owners[partition % len(self.owners)]
        return self.owners[partition] if partition < len(self.owners) else None

    def partitions_of(self, node: str) -> tuple[int, ...]:
        """The places of a node."""
        return tuple(place for place, owner in enumerate(self.owners) if owner == node)


def full_name(name: str) -> str:
    """A rule's name with its schema: a topic without one is of schema main; `*` alone is every topic."""
    return name if "." in name or name == "*" else f"main.{name}"


def read_ranges(text: str) -> list[int]:
    """The partitions that a text like '0-3, 8' names, in its order.

    Raises:
        ValueError: it is none, or names one beyond what a topic may have.
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
    """The other way round: sorted, as ranges."""
    parts: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


@dataclass(frozen=True, slots=True)
class Node:
    """See the head of the file.

    Args:
        name: its name in the cluster.
        host: where the other nodes reach it; "" for the only node of all.
        tls: 'off', 'require' (encrypted, whoever it is) or 'verify-full' (its certificate is checked, too).
        ca: the certificates by which 'verify-full' knows it, PEM; None: those of the system.
        user: as whom the others connect; None where it has no users.
        password_file: a file with that user's password; read at each connection.
        password_env: a variable of the environment that has it instead.
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
        """The parameters with which libpq connects to it, but for those of one connection.

        Raises:
            As `password`.
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
        """The password of the user as whom others connect to it; None where none is said.

        Raises:
            IoError: its file cannot be read. InvalidParameterValue: the variable is not set.
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


# The only node, where there is no cluster.
LOCAL = Node(LOCAL_NAME, "", 0)


class Placement(Protocol):
    """A placement of all topics' partitions; never changes: a newer one takes its place."""

    @property
    def epoch(self) -> int:
        """The number of the placement: the higher one is the newer; 0 where there is no cluster."""

    @property
    def cluster(self) -> str:
        """The cluster's name; "" where there is none."""

    @property
    def local(self) -> Node:
        """This node."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, this one among them, by name."""

    @property
    def users(self) -> str | None:
        """The file that says who may come in on all nodes; None: each node's users are its own."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its rules, in the order in which they are tried."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Former nodes whose database files are lost: what they had is given up."""

    @property
    def digest(self) -> str:
        """A hash of what it says, the same on all nodes: two of one epoch must have one digest."""

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """The node that owns a partition of a topic.

        Raises:
            WrongState: no node owns it.
        """

    def home(self, schema: str, stream: str) -> Node:
        """The node where a topic's definition and its groups' coordination live: that of partition 0.

        Raises:
            WrongState: no node owns it.
        """

    def moves_from(self, old: Placement) -> int:
        """The number of partitions named by the placement that have another owner than in an older one."""


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """One node, which owns everything."""

    local: Node = LOCAL
    epoch: int = 0
    cluster: str = ""
    digest: str = ""
    users: str | None = None
    lost: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """See Placement."""
        return (self.local,)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """See Placement."""
        return (Rule("*", (self.local.name,)),)

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """See Placement."""
        return self.local

    def home(self, schema: str, stream: str) -> Node:
        """See Placement."""
        return self.local

    def moves_from(self, old: Placement) -> int:
        """See Placement."""
        return 0
