"""The place of execution of a statement: this node, or the one other node that has its streams.

A name of an object on this node means that object. Any other name is looked up in the directory of the
other nodes. The directory may have to ask them, so the look-up takes place before the statement is prepared
(`Ask`). Source: docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from sqlglot import exp

from ...engine.catalog.streams import key_of
from ...engine.errors import NotSupported
from ...engine.placement.placement import Node
from ...engine.quoting import fold
from ..language import statements as st
from ..language.clauses import name_sql
from ..language.dialect import scan_of
from ..language.parse import Query
from ..peers.remote import Key
from ..session_state.context import Context
from ..session_state.names import OURS
from ..text.classified import Classified, Kind

# The fields in which statements of ours name a stream.
_FIELDS = frozenset({"name", "stream", "topic"})
# What every node has under the same names: it is the one's where the statement runs.
_EVERYWHERE = frozenset({OURS, "pg_catalog", "information_schema"})


class Ask(Exception):
    """The other nodes must be asked for these streams before the statement can be prepared."""

    def __init__(self, keys: frozenset[Key]) -> None:
        super().__init__(keys)
        self.keys = keys


class Describe(Exception):
    """Another node must be asked for the columns of a query before the statement can be prepared."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(node, text)
        self.node, self.text = node, text


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of execution of a statement.

    Args:
        home: the other node on which the whole statement runs; None for this node.
        scans: the scans of other nodes' streams in a query that runs here, by start position.
    """

    home: Node | None = None
    scans: Mapping[int, Node] = field(default_factory=dict)


def placed(session: Context, classified: Classified, node: object) -> Placed:
    """Determine the place of execution of a statement.

    Raises:
        Ask: a stream must be looked up on the other nodes first.
        NotSupported: the statement names streams of several nodes and is not a query.
    """
    links = session.links
    if links is None:
        return Placed()
    named = list(names(session, classified, node))
    if not named:
        return Placed()
    scanned = [scan.stream for scan in node.scans] if isinstance(node, Query) else named
    found: list[tuple[Node | None, st.Name]] = []
    wanted: set[Key] = set()
    for name in named:
        whole = None if _everywhere(classified, node) else _whole_owner(session, name.parts)
        if whole is not None:
            found.append((whole, name))
            continue
        keys = _keys(session, name.parts) if classified.ddl is None or name in scanned else None
        if keys is None or not (missing := [key for key in keys if key not in links.absent]):
            found.append((None, name))
            continue
        there = next((node_ for key in missing if (node_ := links.remote.known(key))), None)
        if there is None:
            wanted.update(missing)
        else:
            found.append((there, name))
    if wanted:
        raise Ask(frozenset(wanted))
    nodes = {None if there is None else there.name for there, _ in found}
    mixes = isinstance(node, Query) and nodes != {None} and _tables_here(session, node)
    if len(nodes) == 1 and not mixes:
        return Placed(found[0][0])
    if not isinstance(node, Query):
        raise _several(found)
    # The scans come first among the names.
    places = zip(node.scans, found, strict=False)
    return Placed(None, {scan.start: there for scan, (there, _) in places if there is not None})


def _tables_here(session: Context, query: Query) -> bool:
    """True if a query over other nodes' streams names a table or view of this node."""
    return any(
        key[0] not in _EVERYWHERE and session.names.kind_of(key) is not None and session.names.sees(key)
        for key in map(session.names.table_key, _tables(query))
    )


def _tables(query: Query) -> Iterator[tuple[str, ...]]:
    """The tables that a query names, as they are written."""
    if query.tree is None:
        return  # DuckDB's parser may know it: it runs where its streams are.
    common = {fold(cte.alias) for cte in query.tree.find_all(exp.CTE)}
    for table in query.tree.find_all(exp.Table):
        parts = tuple(part.name for part in table.parts)
        plain = scan_of(table) is None and isinstance(table.this, exp.Identifier) and all(parts)
        if plain and not (len(parts) == 1 and fold(parts[0]) in common):
            yield parts


def marked(session: Context, query: Query, scans: Mapping[int, Node]) -> Query:
    """Mark each scan of another node's stream in a query that runs here.

    Raises:
        Describe: the columns of a scan must be requested first.
    """
    assert session.links is not None, "what is away was found through links"
    found = []
    for scan in query.scans:
        there = scans.get(scan.start)
        if there is None:
            found.append(scan)
            continue
        typed: tuple[tuple[str, str], ...] = ()
        if scan.envelope != "json":
            text = f"SELECT * FROM {scan.kind.upper()} {name_sql(scan.stream)} ENVELOPE CHANGES"
            columns = session.links.described.get((there.name, text))
            if columns is None:
                raise Describe(there, text)
            typed = tuple((column.name, column.type) for column in columns)
        found.append(replace(scan, away=there.name, typed=typed))
    return replace(query, scans=tuple(found))


def _everywhere(classified: Classified, node: object) -> bool:
    """True if this node executes a statement about a topic on all nodes, or distributes it among them."""
    row = st.row_of(node)
    if row is not None:
        return row.in_cluster is st.InCluster.ENTRY_NODE_FOR_TOPICS
    return classified.dml is not None and node is None


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
    return [key for name in names(session, classified, node) for key in keys_of_name(session, name)]


def keys_of_name(session: Context, name: st.Name) -> Sequence[Key]:
    """All keys that a name may mean; empty if it is an object on this node."""
    return _keys(session, name.parts) or ()


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
    elif isinstance(node, st.Statement):
        row = st.row_of(node)
        if row is None or row.in_cluster is st.InCluster.ENTRY_NODE:
            return
        for field in fields(node):
            value = getattr(node, field.name)
            if field.name in _FIELDS and isinstance(value, st.Name):
                yield value
    elif classified.dml is not None and classified.verb == "INSERT":
        # A topic, perhaps.
        yield st.Name(classified.dml.target, classified.dml.target_position + 1)


def _keys(session: Context, parts: tuple[str, ...]) -> list[Key] | None:
    """The keys under which a stream of this name may exist, in the order of the search path; None if it is an
    object on this node."""
    names, streams = session.names, session.database.catalog.streams
    inner = names.without_catalog(parts)
    if len(inner) > 2:
        return None
    keys = [key_of(*inner)] if len(inner) == 2 else [key_of(schema, inner[0]) for schema in names.path]
    if any(key in streams for key in keys):
        return None
    key = names.table_key(parts)
    if names.kind_of(key) is None:
        return keys
    # It may be the view of a topic that is being made. A table of this name, too, is what is meant: what is
    # wrong with that is told here.
    session.database.catalog.changes.settle()
    return None
