"""cluster.toml: the nodes of a cluster and the partitions that each owns; a node reads its own copy.

    cluster = "shop"
    epoch = 3
    users = "users.toml"

    [defaults]
    user = "node"
    password_file = "node.password"

    [nodes.n1]
    host = "10.0.0.1"
    port = 5480

    [[topics]]
    name = "main.orders"
    partitions = { n1 = "0-3", n2 = "4-7" }

Paths in it are relative to its own folder. It is read strictly: an unknown key or value is refused, with the
line. Source: docs/cluster.md, "The file".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..catalog.streams import PARTITIONS_MAX
from ..errors import InvalidParameterValue, IoError, WrongState
from ..quoting import fold
from ..toml_file import did_you_mean, line_of, parse, read_text
from .placement import OFF, TLS, VERIFY_FULL, Node, Placement, Rule, full_name, ranges_text, read_ranges

WHAT = "cluster file"
NODES_MAX = 1000
EPOCH_MAX = (1 << 63) - 1
PORT_MAX = 65_535
# Number of topics whose rule a placement caches: some hundred bytes each.
FOUND_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
# The keys of a node, and those of [defaults] for all nodes: key -> type of its value.
_SHARED = {"tls": str, "ca": str, "user": str, "password_file": str, "password_env": str}
_NODE = {"host": str, "port": int, **_SHARED}
_TOP = {
    "cluster": str, "epoch": int, "users": str, "lost": list, "defaults": dict, "nodes": dict, "topics": list
}  # fmt: skip
_TOPIC = {"name": str, "partitions": dict}
_KINDS = {str: "a string", int: "a whole number", dict: "a table", list: "an array"}
# A file beside it, until it is complete.
NEW_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The contents of a cluster.toml.

    Args:
        users: the path of the file of users, as written; None if users are created by CREATE USER on each
            node.
        defaults: the values of [defaults] by key.
        nodes: the nodes by name; paths as written.
        rules: the rules in the order of the file.
        lost: names of former nodes whose database files are lost, with the events in them.
    """

    cluster: str
    epoch: int
    nodes: tuple[Node, ...]
    rules: tuple[Rule, ...]
    users: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def node(self, name: str) -> Node | None:
        """The node with a name, or None."""
        return next((node for node in self.nodes if node.name == name), None)

    @property
    def digest(self) -> str:
        """A hash of its contents, independent of spelling."""
        said = [self.cluster, self.epoch, self.users, [asdict(node) for node in self.nodes]]
        rules = [[fold(rule.name), rule.owners] for rule in self.rules]
        lost = [self.lost] if self.lost else []
        return hashlib.sha256(json.dumps([*said, rules, *lost]).encode()).hexdigest()


class FilePlacement:
    """The placement described by a cluster.toml.

    Args:
        file: the contents of the file.
        local: this node, or its name; a node that is not in the file has left the cluster.
        folder: the folder of the files named in it.
    """

    def __init__(self, file: ClusterFile, local: Node, folder: Path) -> None:
        self.file = file
        self.nodes = tuple(_placed(node, folder) for node in file.nodes)
        self._by_name = {node.name: node for node in self.nodes}
        self.local = self._by_name.get(local.name, local)
        self.epoch, self.cluster, self.digest = file.epoch, file.cluster, file.digest
        self.rules, self.lost = file.rules, file.lost
        self.users = None if file.users is None else str(folder / file.users)
        self._found: dict[tuple[str, str], Rule | None] = {}

    def rule(self, schema: str, stream: str) -> Rule | None:
        """The rule for a topic: the first one that matches."""
        key = schema, stream
        if key not in self._found:
            # Called by each statement for each partition of its topic.
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[key] = _first(self.rules, fold(f"{schema}.{stream}"))
        return self._found[key]

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """The node that owns a partition of a topic, by the rule for the topic."""
        rule = self.rule(schema, stream)
        if rule is None:
            raise WrongState(
                f'no node of cluster "{self.cluster}" owns topic "{schema}.{stream}"',
                detail=f"No rule of the placement of epoch {self.epoch} is for it.",
                hint='Add a rule for it, or one with name = "*", raise the epoch, and apply the file.',
            )
        owner = rule.owner(partition)
        if owner is None:
            raise WrongState(
                f'no node of cluster "{self.cluster}" owns partition {partition} of topic '
                f'"{schema}.{stream}"',
                detail=f'Rule "{rule.name}" of the placement of epoch {self.epoch} has '
                f"{len(rule.owners)} partitions.",
            )
        return self._by_name[owner]

    def home(self, schema: str, stream: str) -> Node:
        """The node of a topic's definition and group coordination: the owner of partition 0."""
        return self.owner(schema, stream, 0)

    def moves_from(self, old: Placement) -> int:
        """The number of partitions in the rules with another owner than in an older placement."""
        return len(partition_moves(old.rules, self.rules)) if isinstance(old, FilePlacement) else 0


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition of a rule that moves from one node to another."""

    rule: str
    partition: int
    source: str
    target: str


def partition_moves(old: Sequence[Rule], new: Sequence[Rule]) -> list[PartitionMove]:
    """The partitions whose owner differs between old and new rules.

    Each name of an old or new rule is matched against both lists, because another rule may now apply to a
    topic.
    """
    names = {fold(rule.name): rule.name for rule in (*old, *new)}
    found = []
    for key, name in names.items():
        before, after = _first(old, key), _first(new, key)
        if before is None or after is None:
            continue
        # The number of partitions after which both rules repeat.
        round_ = math.lcm(len(before.owners), len(after.owners))
        for partition in range(min(round_, PARTITIONS_MAX)):
            source, target = before.owner(partition), after.owner(partition)
            if source is not None and target is not None and source != target:
                found.append(PartitionMove(name, partition, source, target))
    return found


def _first(rules: Sequence[Rule], key: str) -> Rule | None:
    """The rule that applies to a topic, or to those of a name with `*`."""
    return next((rule for rule in rules if rule.fits(key)), None)


def _placed(node: Node, folder: Path) -> Node:
    """A node with its file paths resolved."""
    ca = None if node.ca is None else str(folder / node.ca)
    password_file = None if node.password_file is None else str(folder / node.password_file)
    return replace(node, ca=ca, password_file=password_file)


# Reading.


def read_cluster_file(path: Path) -> ClusterFile:
    """The contents of the cluster file at `path`.

    Raises:
        InvalidParameterValue: the file is invalid, with file and line.
        IoError: the file cannot be read.
    """
    return read_cluster_text(read_text(path, WHAT), str(path))


def read_cluster_text(text: str, place: str) -> ClusterFile:
    """The contents of a cluster file's text.

    Args:
        place: the source of the text, for messages.

    Raises:
        InvalidParameterValue: the text is invalid.
    """
    return _ClusterFileReader(text, place).read()


class _ClusterFileReader:
    """Reads one text as a ClusterFile."""

    def __init__(self, text: str, place: str) -> None:
        self._text, self._place = text, place

    def read(self) -> ClusterFile:
        top = self._table(parse(self._text, self._place, WHAT), _TOP, ("cluster", "epoch", "nodes"))
        cluster, epoch = top["cluster"], top["epoch"]
        if _NAME.fullmatch(cluster) is None:
            raise self._wrong(f"not a name of letters, digits, _, . and -: {cluster!r}", "cluster")
        if not 1 <= epoch <= EPOCH_MAX:
            raise self._wrong(f"an epoch is 1 or more, not {epoch}", "epoch")
        defaults = self._table(top.get("defaults", {}), _SHARED, (), "defaults")
        nodes = self._nodes(top["nodes"], defaults)
        names = {node.name for node in nodes}
        rules = [self._rule(item, number, names) for number, item in enumerate(top.get("topics", []))]
        self._check_reached(rules)
        lost = self._lost(top.get("lost", []), names)
        return ClusterFile(cluster, epoch, nodes, tuple(rules), top.get("users"), defaults, lost)

    def _lost(self, named: list[Any], nodes: set[str]) -> tuple[str, ...]:
        for number, name in enumerate(named):
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                raise self._wrong(f"not a node's name: {name!r}", "lost", number)
            if name in nodes:
                raise self._wrong(
                    f'node "{name}" is lost, and cannot be one of the nodes', "lost", number,
                    hint="A node that takes its place wants another name.",
                )  # fmt: skip
        return tuple(sorted(set(named)))

    def _nodes(self, named: Mapping[str, Any], defaults: Mapping[str, str]) -> tuple[Node, ...]:
        if not 1 <= len(named) <= NODES_MAX:
            raise self._wrong(f"a cluster has 1 to {NODES_MAX} nodes, not {len(named)}", "nodes")
        nodes = tuple(self._node(name, named[name], defaults) for name in sorted(named))
        ends: dict[tuple[str, int], str] = {}
        for node in nodes:
            end = (node.host.lower(), node.port)
            if end in ends:
                raise self._wrong(
                    f'nodes "{ends[end]}" and "{node.name}" are both at {node.host}:{node.port}',
                    "nodes", node.name, "port",
                )  # fmt: skip
            ends[end] = node.name
        return nodes

    def _node(self, name: str, value: object, defaults: Mapping[str, str]) -> Node:
        path = ("nodes", name)
        if _NAME.fullmatch(name) is None:
            raise self._wrong(f"not a name of letters, digits, _, . and -: {name!r}", *path)
        if not isinstance(value, dict):
            raise self._wrong(f'node "{name}" wants a table', *path)
        said = self._table(value, _NODE, ("host", "port"), *path)
        if not said["host"]:
            raise self._wrong("a node wants a host", *path, "host")
        if not 1 <= said["port"] <= PORT_MAX:
            raise self._wrong(f"not a port from 1 to {PORT_MAX}: {said['port']}", *path, "port")
        # A node with its own source of a password does not use the other source of the defaults.
        passwords = {"password_file", "password_env"}
        own = bool(passwords & said.keys())
        node = Node(name, **{k: v for k, v in defaults.items() if not (own and k in passwords)} | said)
        if node.tls not in TLS:
            raise self._wrong(f"tls is one of {', '.join(TLS)}, not {node.tls!r}", *path, "tls")
        if node.ca is not None and node.tls != VERIFY_FULL:
            raise self._wrong(f'ca wants tls = "{VERIFY_FULL}"', *path, "ca")
        if node.password_file is not None and node.password_env is not None:
            raise self._wrong("password_file and password_env do not go together", *path, "password_env")
        if node.user is None and (node.password_file or node.password_env):
            raise self._wrong("a password wants a user", *path)
        return node

    def _rule(self, value: object, number: int, nodes: set[str]) -> Rule:
        path = ("topics", number)
        if not isinstance(value, dict):
            raise self._wrong("topics are tables: [[topics]]", *path)
        said = self._table(value, _TOPIC, ("name", "partitions"), *path)
        name = full_name(said["name"])
        if not said["name"] or "" in name.split("."):
            raise self._wrong(f"not a topic's name, like main.orders or *: {said['name']!r}", *path, "name")
        owners: dict[int, str] = {}
        for node, text in said["partitions"].items():
            where = (*path, "partitions", node)
            if node not in nodes:
                raise self._wrong(f'unknown node "{node}"', *where, hint=did_you_mean(node, nodes, "Nodes"))
            try:
                numbers = read_ranges(text) if isinstance(text, str) else [_whole(text)]
            except ValueError as error:
                raise self._wrong(f'node "{node}": {error}', *where) from None
            for partition in numbers:
                if partition in owners:
                    both = f'"{owners[partition]}" and "{node}"'
                    raise self._wrong(f'partition {partition} of "{name}" has two owners, {both}', *where)
                owners[partition] = node
        if not owners:
            raise self._wrong(f'"{name}" has no partitions', *path, "partitions")
        missing = sorted(set(range(max(owners) + 1)) - owners.keys())
        if missing:
            raise self._wrong(
                f'no node owns partition{"s" if len(missing) > 1 else ""} {ranges_text(missing)} of "{name}"',
                *path, "partitions",
            )  # fmt: skip
        return Rule(name, tuple(owners[partition] for partition in range(len(owners))))

    def _check_reached(self, rules: list[Rule]) -> None:
        """Refuse a rule that can never apply, behind one that matches all of its topics."""
        for number, rule in enumerate(rules):
            # A `*` of the later rule stands for any text, so it must match a `*` of the earlier one.
            for earlier in rules[:number]:
                if earlier.fits(fold(rule.name)):
                    raise self._wrong(
                        f'rule "{rule.name}" is never reached: "{earlier.name}" before it takes its topics',
                        "topics", number, "name",
                        hint="The first rule that fits counts: the particular ones come first.",
                    )  # fmt: skip

    def _table(
        self, values: Mapping[str, Any], known: Mapping[str, type], wanted: tuple[str, ...], *path: str | int
    ) -> dict[str, Any]:
        """A table's values: known keys only, each of its type, and all required keys."""
        inside = f" in {_shown(path)}" if path else ""
        for key, value in values.items():
            if key not in known:
                raise self._wrong(
                    f'unknown key "{key}"{inside}', *path, key, hint=did_you_mean(key, known, "Known are")
                )
            if not isinstance(value, known[key]) or isinstance(value, bool):
                raise self._wrong(f'"{key}"{inside} wants {_KINDS[known[key]]}, not {value!r}', *path, key)
        for key in wanted:
            if key not in values:
                raise self._wrong(f'"{key}" is missing{inside}', *path)
        return dict(values)

    def _wrong(self, what: str, *path: str | int, hint: str | None = None) -> InvalidParameterValue:
        return InvalidParameterValue(f"{self._place}{line_of(self._text, *path)}: {what}", hint=hint)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < PARTITIONS_MAX:
        raise ValueError(f"not partitions like '0-3, 8': {value!r}")
    return value


def _shown(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path)


# Writing.


def render(file: ClusterFile) -> str:
    """The text of a cluster.toml with these contents, without the comments of the file that was read."""
    lines = [f"cluster = {_text(file.cluster)}", f"epoch = {file.epoch}"]
    if file.users is not None:
        lines.append(f"users = {_text(file.users)}")
    if file.lost:
        lines.append(f"lost = [{', '.join(map(_text, file.lost))}]")
    if file.defaults:
        lines += ["", "[defaults]", *(f"{key} = {_text(value)}" for key, value in file.defaults.items())]
    for node in file.nodes:
        lines += ["", f"[nodes.{_key(node.name)}]", *_node_lines(node, file.defaults)]
    for rule in file.rules:
        names = sorted(set(rule.owners))
        owned = ", ".join(f'{_key(name)} = "{ranges_text(rule.partitions_of(name))}"' for name in names)
        lines += ["", "[[topics]]", f"name = {_text(rule.name)}", f"partitions = {{ {owned} }}"]
    return "\n".join(lines) + "\n"


def _node_lines(node: Node, defaults: Mapping[str, str]) -> list[str]:
    lines = [f"host = {_text(node.host)}", f"port = {node.port}"]
    for key in _SHARED:
        value = getattr(node, key)
        if value is not None and value != defaults.get(key, OFF if key == "tls" else None):
            lines.append(f"{key} = {_text(value)}")
    return lines


def _text(value: str) -> str:
    # JSON's strings are TOML's, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _text(name)


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A node's copy of the file.

    Args:
        node: the name of this node.
    """

    path: Path
    node: str

    def load(self, before: Node | None = None) -> FilePlacement:
        """The placement in the file's present text.

        Args:
            before: this node in the previous placement: if the file no longer has it, it has left the
                cluster.

        Raises:
            InvalidParameterValue: the file is invalid, with file and line.
        IoError: the file cannot be read.
        """
        return self.read(read_text(self.path, WHAT), str(self.path), before)

    def read(self, text: str, place: str, before: Node | None = None) -> FilePlacement:
        """The placement in a text; errors as in `load`."""
        file = read_cluster_text(text, place)
        local = file.node(self.node) or before
        if local is None:
            hint = did_you_mean(self.node, [node.name for node in file.nodes], "Its nodes")
            raise InvalidParameterValue(f'{place}: node "{self.node}" is not in it', hint=hint)
        return FilePlacement(file, local, self.path.parent)

    def write(self, text: str) -> None:
        """Replace the file by a text, as in `write_file`.

        Raises:
            IoError: the file cannot be written.
        """
        write_file(self.path, text)


def write_file(path: Path, text: str) -> None:
    """Replace a file by a text atomically, even if the machine fails.

    Raises:
        IoError: the file cannot be written.
    """
    new = path.with_name(path.name + NEW_SUFFIX)
    try:
        with new.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise IoError(f'cannot write {WHAT} "{path}": {reason}') from None
