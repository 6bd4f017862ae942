"""Names that mean something else to DuckDB, or to us, than what a user would make under them.

A schema called `temp` or like the database itself is taken for the catalog of that name, by DuckDB in some
statements and by rights in others. DuckDB's own SQL reads views such as `duckdb_tables` by their bare name:
a table of that name would answer in their place. Source: docs/security.md, "Reserved names".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from ..engine.asking import ask_maybe
from ..engine.database import Database
from ..engine.errors import NotSupported, ReservedName
from ..engine.schema import SCHEMA
from .context import Context
from .language import statements as st
from .text.classified import DdlFacts
from .text.tokens import Token

# Catalogs and schemas of DuckDB, and ours; beside them what begins with PREFIX, and the database's own name.
SCHEMAS = frozenset({"temp", "system", "pg_temp", "pg_catalog", "information_schema", SCHEMA})
PREFIX = "__ducktail"

_RELATIONS = frozenset({"TABLE", "VIEW"})
_SMALL = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def folded(name: str) -> str:
    """A name as DuckDB compares it: it ignores the case of ASCII alone."""
    return name.translate(_SMALL)


def is_reserved_schema(session: Context, name: str) -> bool:
    """Whether no schema can be made under this name."""
    small = folded(name)
    own = folded(session.database.catalog_name)
    return small in SCHEMAS or small == own or small.startswith(PREFIX)


def refuse_schema(session: Context, facts: DdlFacts) -> None:
    """Refuse CREATE SCHEMA and ALTER SCHEMA ... RENAME TO under a reserved name, to everybody.

    Raises:
        ReservedName: 42939.
    """
    if facts.object_type != "SCHEMA":
        return
    made = [name[-1] for name in facts.names] if facts.verb == "CREATE" else []
    for name in [*made, *([] if facts.renamed is None else [facts.renamed])]:
        # IF NOT EXISTS of one that is there makes nothing.
        if is_reserved_schema(session, name) and not (facts.if_not_exists and session.names.has_schema(name)):
            raise ReservedName(
                f'unacceptable schema name "{name}"',
                detail="It is reserved for DuckDB, ducktail or the database itself.",
            )


def refuse_relations(session: Context, facts: DdlFacts) -> None:
    """Refuse a table or view, temporary or not, under the name of one of DuckDB's own views.

    Raises:
        ReservedName: 42939.
    """
    if facts.object_type in _RELATIONS:
        made = [name[-1] for name in facts.names] if facts.verb == "CREATE" else []
        _refuse(session, [*made, *([] if facts.renamed is None else [facts.renamed])])


def refuse_stream(session: Context, node: object) -> None:
    """Refuse a stream or topic under such a name: its view would have it.

    Raises:
        ReservedName: 42939.
    """
    if isinstance(node, st.CreateStream | st.CreateTopic):
        _refuse(session, [node.name.last])
    elif isinstance(node, st.RenameStream):
        _refuse(session, [node.new])


def _refuse(session: Context, names: Iterable[str]) -> None:
    sql = (
        "SELECT 1 FROM duckdb_views() WHERE internal AND database_name = 'system' "
        "AND schema_name = 'main' AND lower(view_name) = $1 LIMIT 1"
    )
    for name in names:
        if ask_maybe(session.meta, sql, [folded(name)]) is not None:
            raise ReservedName(
                f'unacceptable name "{name}"', detail="It is reserved for a view of DuckDB's own."
            )


def refuse_inside(session: Context, tokens: Sequence[Token]) -> None:
    """Refuse a text that may reach into a schema which has a reserved name all the same.

    Such a schema was made past ducktail, or by an earlier version. Superusers are not asked: they drop it.

    Raises:
        NotSupported: 0A000.
    """
    found = _present(session)
    if not found:
        return
    named = {folded(token.name) for token in tokens if token.is_name}
    hit = next(iter(sorted(found & (named | {folded(schema) for schema in session.names.path}))), None)
    if hit is not None:
        raise NotSupported(
            f'schema "{hit}" is not supported: its name is reserved',
            hint="A superuser can move what it holds into another schema, and drop it.",
        )


def _present(session: Context) -> frozenset[str]:
    """The schemas of the database that have reserved names."""
    database = session.database
    kept = _kept.get(database)
    if kept is not None and kept[0] == database.catalog.version:
        return kept[1]
    version = database.catalog.version
    rows = session.meta.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE database_name = $1 AND NOT internal",
        [database.catalog_name],
    ).fetchall()
    names = frozenset(folded(name) for (name,) in rows if is_reserved_schema(session, name)) - {SCHEMA}
    _kept[database] = (version, names)
    return names


# What was found last in each open database, and as of which version of its catalog.
_kept: WeakKeyDictionary[Database, tuple[int, frozenset[str]]] = WeakKeyDictionary()
