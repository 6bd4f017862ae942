"""The tables of a PostgreSQL outside: from its catalog and from Relation messages to `SourceTable`.

A key is the index that identifies rows in replication (the primary key by default); with REPLICA IDENTITY
FULL, where a Relation message marks every column, it is the primary key of the catalog. Only the columns of
the key are `not_null`: a Relation message does not say it of the others, and rows that were written before
a SET NOT NULL may still be to be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....engine.catalog.source_tables import SourceColumn, SourceTable
from .libpq import Row, literal
from .postgres_types import PostgresTypes, read_array

# pg_class.relreplident.
DEFAULT, FULL, NOTHING, INDEX = "d", "f", "n", "i"
# server_version_num from which a publication may contain generated columns.
_GENERATED_SINCE = 180000


class RelationColumn(NamedTuple):
    """A column that replication sends.

    Args:
        is_key: it belongs to the index that identifies rows, or the identity is FULL.
    """

    name: str
    type_oid: int
    modifier: int
    is_key: bool


class Relation(NamedTuple):
    """A table as replication sends it.

    Args:
        identity: pg_class.relreplident.
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table's row in pg_class, and facts that depend on its user.

    Args:
        kind, persistence: pg_class.relkind and relpersistence.
        partition_of: the oid of the topmost partitioned table that it is part of; 0 for none.
        is_owner: the user is its owner, or a member of that role.
        is_reachable: the user may use its schema.
        has_policies: policies hide rows of it from the user.
        unidentified: it or its partitions with an identity that lets the source refuse UPDATE and DELETE
            once they are published.
        unreadable: the names of columns that the user may not read.
        table: its definition.
    """

    oid: int
    kind: str
    persistence: str
    partition_of: int
    is_owner: bool
    is_reachable: bool
    has_policies: bool
    unidentified: tuple[str, ...]
    unreadable: tuple[str, ...]
    table: SourceTable


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication.

    Args:
        columns: the columns that are published; None for all.
        row_filter: SQL; "" for all rows.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...] | None
    row_filter: str

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"


_OIDS = "(SELECT value::pg_catalog.oid FROM pg_catalog.json_array_elements_text($1::pg_catalog.json))"
# An identity by which the source can say which row it means.
_IDENTIFIED = """(
    {c}.relreplident = 'f' OR EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = {c}.oid AND i.indisvalid AND
        CASE {c}.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                              WHEN 'i' THEN i.indisreplident ELSE false END))"""
_CLASSES = f"""
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence,
       CASE WHEN c.relispartition THEN pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid ELSE 0 END,
       pg_catalog.pg_has_role(c.relowner, 'USAGE'), pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.row_security_active(c.oid), c.relreplident,
       (SELECT pg_catalog.json_agg(l.oid::pg_catalog.regclass::text ORDER BY l.oid)
        FROM pg_catalog.pg_class l
        WHERE l.oid IN (SELECT c.oid WHERE c.relkind <> 'p' UNION ALL
                        SELECT relid FROM pg_catalog.pg_partition_tree(c.oid) WHERE isleaf)
          AND l.relkind = 'r' AND NOT {_IDENTIFIED.format(c="l")}),
       (SELECT pg_catalog.bool_and(l.relreplident = 'f') FROM pg_catalog.pg_partition_tree(c.oid) t
        JOIN pg_catalog.pg_class l ON l.oid = t.relid AND t.isleaf)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN {_OIDS}
"""
_COLUMNS = f"""
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attndims, a.attgenerated <> '',
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
               AND i.indimmediate AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid AND i.indisreplident
               AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])), a.attnum
FROM pg_catalog.pg_attribute a
WHERE a.attrelid IN {_OIDS} AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
_PUBLISHED = """
SELECT c.oid, p.schemaname, p.tablename, {columns}, {row_filter}
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 ORDER BY p.schemaname, p.tablename
"""
_FACTS = """
SELECT (SELECT pg_catalog.json_object_agg(a.attname, pg_catalog.json_build_array(
            a.attndims, a.attnum, CASE WHEN a.atthasmissing THEN a.attmissingval::text END))
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT pg_catalog.json_agg(a.attname) FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
        WHERE a.attrelid = $1::oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])),
       (SELECT pg_catalog.bool_and(l.relreplident = 'f') FROM pg_catalog.pg_partition_tree($1::oid) t
        JOIN pg_catalog.pg_class l ON l.oid = t.relid AND t.isleaf)
"""


class PostgresCatalog:
    """Queries of the catalog.

    Args:
        query: runs SQL at the source.
        version: server_version_num.
    """

    def __init__(self, query: Callable[..., list[Row]], version: int) -> None:
        self._query = query
        self._version = version
        self._types = PostgresTypes(query)

    def published(self, publication: str) -> list[PublishedTable]:
        """The tables of a publication."""
        new = self._version >= 150000
        sql = _PUBLISHED.format(
            columns="pg_catalog.array_to_json(p.attnames)" if new else "NULL",
            row_filter="p.rowfilter" if new else "NULL",
        )
        return [
            PublishedTable(
                int(oid or 0), schema or "", name or "", tuple(json.loads(columns)) if columns else None,
                row_filter or "",
            )
            for oid, schema, name, columns, row_filter in self._query(sql, publication)
        ]  # fmt: skip

    def tables(
        self, oids: Sequence[int], published: Mapping[int, Iterable[str]] | None = None
    ) -> list[CatalogTable]:
        """Tables by oid, in the given order; those that no longer exist are left out.

        Args:
            published: the columns of those tables that do not publish all.
        """
        given = json.dumps(list(oids))
        columns: dict[int, list[Row]] = {}
        for row in self._query(_COLUMNS, given):
            columns.setdefault(int(row[0] or 0), []).append(row)
        self._types.load(int(row[2] or 0) for rows in columns.values() for row in rows)
        found: dict[int, CatalogTable] = {}
        for row in self._query(_CLASSES, given):
            oid = int(row[0] or 0)
            only = None if published is None or oid not in published else set(published[oid])
            found[oid] = self._table(oid, row, columns.get(oid, []), only)
        return [found[oid] for oid in oids if oid in found]

    def _table(self, oid: int, row: Row, columns: Sequence[Row], only: set[str] | None) -> CatalogTable:
        (
            _,
            schema,
            name,
            kind,
            persistence,
            root,
            owner,
            reachable,
            policies,
            identity,
            unidentified,
            all_full,
        ) = row
        identity = identity or DEFAULT
        sent = [
            column
            for column in columns
            if (only is None or column[1] in only)
            and (column[5] == "f" or (only is not None and self._version >= _GENERATED_SINCE))
        ]
        relation = Relation(
            oid, schema or "", name or "", identity,
            tuple(
                RelationColumn(
                    column[1] or "", int(column[2] or 0), int(column[3] or 0),
                    _is_key(identity, column[7] == "t", column[8] == "t"),
                )
                for column in sent
            ),
        )  # fmt: skip
        dimensions = {column[1] or "": int(column[4] or 0) for column in sent}
        primary = [column[1] or "" for column in columns if column[7] == "t"]
        numbers = {column[1] or "": (int(column[9] or 0), "") for column in sent}
        return CatalogTable(
            oid, kind or "", persistence or "", int(root or 0),
            owner == "t", reachable == "t", policies == "t",
            tuple(json.loads(unidentified)) if unidentified else (),
            tuple(column[1] or "" for column in sent if column[6] != "t"),
            self._source_table(relation, dimensions, numbers, primary, all_full != "f"),
        )  # fmt: skip

    def define(self, relation: Relation, known: SourceTable) -> SourceTable:
        """The definition of a table as of a Relation message.

        Args:
            known: the one before, for columns that the catalog no longer has.
        """
        self._types.load(column.type_oid for column in relation.columns)
        ((columns, primary, all_full),) = self._query(_FACTS, str(relation.oid))
        facts: dict[str, tuple[int, int, str | None]] = json.loads(columns) if columns else {}
        dimensions = {column.name: 2 if column.type == "VARCHAR" else 1 for column in known.columns}
        dimensions |= {name: found[0] for name, found in facts.items()}
        return self._source_table(
            relation,
            dimensions,
            _numbers(relation, known, {name: (found[1], found[2]) for name, found in facts.items()}),
            json.loads(primary) if primary else [],
            all_full != "f",
        )

    def _source_table(
        self,
        relation: Relation,
        dimensions: Mapping[str, int],
        numbers: Mapping[str, tuple[int, str]],
        primary: Iterable[str],
        all_full: bool,
    ) -> SourceTable:
        """A definition.

        Args:
            dimensions: the declared dimensions of columns.
            numbers: the number of each column, and the text of the value of rows before it was added.
            primary: the primary key's columns.
            all_full: all partitions, if any, have REPLICA IDENTITY FULL.
        """
        names = [column.name for column in relation.columns]
        key = {column.name for column in relation.columns if column.is_key}
        if relation.identity == FULL:
            key = set(primary)
        if not key.issubset(names):
            key = set()
        columns = tuple(
            self._types.column(
                column.name, column.type_oid, column.modifier, dimensions.get(column.name, 0),
                column.name in key,
            )
            for column in relation.columns
        )  # fmt: skip
        columns = tuple(_numbered(column, *numbers.get(column.name, (0, ""))) for column in columns)
        full = relation.identity == FULL and all_full
        return SourceTable(
            relation.schema, relation.name, columns, tuple(name for name in names if name in key),
            tuple(full or name in key for name in names),
        )  # fmt: skip


def _numbered(column: SourceColumn, number: int, fill: str) -> SourceColumn:
    return replace(column, number=number, fill=column.sql(literal(fill)) if fill else "")


def _numbers(
    relation: Relation, known: SourceTable, catalog: Mapping[str, tuple[int, str | None]]
) -> dict[str, tuple[int, str]]:
    """The numbers of a relation's columns, and the values of rows before they were added.

    The catalog is that of now: a column may have another name there since, or be gone. It is then the one
    before, or the only one whose number is between those of its neighbours: columns stand by their numbers.
    """
    before = {column.name: column.number for column in known.columns}
    names = [column.name for column in relation.columns]
    found = {name: catalog[name][0] if name in catalog else before.get(name, 0) for name in names}
    others = {number for number, _ in catalog.values()} | set(before.values())
    for place, name in enumerate(names):
        if not found[name]:
            low = max((found[other] for other in names[:place]), default=0)
            high = min((found[other] for other in names[place + 1 :] if found[other]), default=1 << 16)
            free = [number for number in others - set(found.values()) if low < number < high]
            found[name] = free[0] if len(free) == 1 else 0
    # A value of earlier rows belongs to the definition that adds the column, not to those after it.
    added = {name for name in names if found[name] not in before.values()}
    fills = {name: missing for name, (_, missing) in catalog.items() if missing is not None and name in added}
    texts = {name: read_array(fill)[0] or "" for name, fill in fills.items()}
    return {name: (found[name], texts.get(name, "")) for name in names}


def _is_key(identity: str, primary: bool, index: bool) -> bool:
    return {DEFAULT: primary, INDEX: index, FULL: True}.get(identity, False)
