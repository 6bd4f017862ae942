"""Where a statement runs: here, or whole on the one other node that has the streams which it names.

A name that is something here is what it is here. What is nothing here is looked for in the directory of the
other nodes; that may have to ask them, so it is done before the statement is prepared (`Ask`).
Source: docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from ...engine.cluster.node import Node
from ...engine.errors import NotSupported
from ...engine.streams import fold
from ..context import Context
from ..language import statements as st
from ..language import statements_other as sto
from ..language.parse import Query
from ..remote import Key
from ..text.classified import Classified, Kind

# Statements that make what they name, or are about more than a stream: they are this node's.
_LOCAL = (st.CreateStream, st.CreateTopic, sto.Grant, sto.Revoke)
# Those that define groups: where the group is on a topic, on every node.
_DEFINING = (st.CreateGroup, st.SetGroup, st.DropGroup)
# The fields in which statements of ours name a stream.
_FIELDS = frozenset({"name", "stream", "topic"})


class Ask(Exception):
    """The other nodes must be asked for these streams before the statement can be prepared."""

    def __init__(self, keys: frozenset[Key]) -> None:
        super().__init__(keys)
        self.keys = keys


def home(session: Context, classified: Classified, node: object) -> Node | None:
    """The node on which a statement runs; None for this one.

    Raises:
        Ask: it has to be looked for first.
        NotSupported: 0A000, the statement names streams of several nodes.
    """
    links = session.links
    if links is None:
        return None
    named = list(names(session, classified, node))
    if not named:
        return None
    scanned = [scan.stream for scan in node.scans] if isinstance(node, Query) else named
    found: dict[str | None, tuple[Node | None, st.Name]] = {}
    wanted: set[Key] = set()
    for name in named:
        whole = None if _everywhere(classified, node) else _whole_owner(session, name.parts)
        if whole is not None:
            found[whole.name] = whole, name
            continue
        keys = _keys(session, name.parts) if classified.ddl is None or name in scanned else None
        if keys is None or not (missing := [key for key in keys if key not in links.absent]):
            found[None] = None, name
            continue
        there = next((node_ for key in missing if (node_ := links.remote.known(key))), None)
        if there is None:
            wanted.update(missing)
        else:
            found[there.name] = there, name
    if wanted:
        raise Ask(frozenset(wanted))
    if len(found) > 1:
        raise _several(list(found.values()))
    ((there, _),) = found.values()
    return there


def _everywhere(classified: Classified, node: object) -> bool:
    """Whether a statement about a topic is for all nodes, or shared out by this one: sql/spread."""
    return isinstance(node, (*_DEFINING, sto.Publish)) or (classified.dml is not None and node is None)


def _whole_owner(session: Context, parts: tuple[str, ...]) -> Node | None:
    """The other node that owns all partitions of a topic, which is defined here as well."""
    stream = session.names.find_stream(parts)
    if stream is None or not stream.topic:
        return None
    placement = session.database.cluster.placement
    owners = {
        node.name: node
        for partition in range(stream.partitions)
        for node in [placement.owner(stream.schema, stream.name, partition)]
    }
    if len(owners) > 1 or placement.local.name in owners:
        return None
    return next(iter(owners.values()))


def _several(found: Sequence[tuple[Node | None, st.Name]]) -> NotSupported:
    at = [("no stream of another node" if node is None else f"on node {node.name}", n) for node, n in found]
    places = ", ".join(f'"{name}" is {place}' for place, name in at)
    return NotSupported(
        "a statement cannot be about several nodes",
        detail=f"Here {places}.",
        hint="Read each stream in a statement of its own, and write what it gives with another one.",
        position=found[-1][1].position or None,
    )


def keys_of(session: Context, classified: Classified, node: object) -> list[Key]:
    """All keys that the names of a statement may mean."""
    return [key for name in names(session, classified, node) for key in _keys(session, name.parts) or ()]


def names(session: Context, classified: Classified, node: object) -> Iterator[st.Name]:
    """The streams that a statement names."""
    if isinstance(node, Query):
        # A COPY sends what its query answers: that is a statement of its own.
        if classified.kind is not Kind.COPY:
            yield from (scan.stream for scan in node.scans)
        if classified.dml is not None:
            # What it writes is found where it runs, or it does not run.
            yield st.Name(classified.dml.target, classified.dml.target_position + 1)
        elif classified.ddl is not None:
            yield st.Name(classified.ddl.names[0], 1)
    elif isinstance(node, _LOCAL) or getattr(node, "topic", None) is True:
        # A topic is defined on every node: each asks the others itself (spread/definitions.py).
        return
    elif isinstance(node, st.Statement):
        for field in fields(node):
            value = getattr(node, field.name)
            if field.name in _FIELDS and isinstance(value, st.Name):
                yield value
    elif classified.dml is not None and classified.verb == "INSERT":
        # A topic, perhaps.
        yield st.Name(classified.dml.target, classified.dml.target_position + 1)


def _keys(session: Context, parts: tuple[str, ...]) -> list[Key] | None:
    """Under which a stream of this name would be found, in the order of the search path; None: it is here."""
    names, streams = session.names, session.database.catalog.streams
    inner = names.without_catalog(parts)
    if len(inner) > 2:
        return None
    keys = [fold(*inner)] if len(inner) == 2 else [fold(schema, inner[0]) for schema in names.path]
    if any(key in streams for key in keys):
        return None
    key = names.table_key(parts)
    # A table of this name, too, is what is meant: what is wrong with that is told here.
    return None if names.kind_of(key) is not None else keys
