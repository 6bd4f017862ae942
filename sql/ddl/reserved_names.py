"""Reserved names: a user's object with such a name would be taken for one of DuckDB's or ducktail's.

A schema called `temp`, or named like the database itself, is taken for the catalog of that name, by DuckDB in
some statements and by the check of rights in others. DuckDB's own SQL reads views such as `duckdb_tables` by
their unqualified names: a table of that name would replace them. Source: docs/security.md, "Reserved names".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...engine.duck.cursors import ask_maybe
from ...engine.errors import NotSupported, ReservedName
from ...engine.quoting import fold, folded_sql
from ...engine.schema import SCHEMA
from ..language import statements as st
from ..session_state.context import Context
from ..text.classified import DdlFacts
from ..text.tokens import Token

# Catalogs and schemas of DuckDB and ducktail; names with PREFIX and the database's own name are reserved too.
SCHEMAS = frozenset({"temp", "system", "pg_temp", "pg_catalog", "information_schema", SCHEMA})
PREFIX = "__ducktail"

_RELATIONS = frozenset({"TABLE", "VIEW"})


def is_reserved_schema(session: Context, name: str) -> bool:
    """True if the name is reserved and no schema can have it."""
    small = fold(name)
    own = fold(session.database.catalog_name)
    return small in SCHEMAS or small == own or small.startswith(PREFIX)


def refuse_schema(session: Context, facts: DdlFacts) -> None:
    """Refuse CREATE SCHEMA and ALTER SCHEMA ... RENAME TO under a reserved name, to everybody.

    Raises:
        ReservedName: the name is reserved.
    """
    if facts.object_type != "SCHEMA":
        return
    made = [name[-1] for name in facts.names] if facts.verb == "CREATE" else []
    for name in [*made, *([] if facts.renamed is None else [facts.renamed])]:
        # IF NOT EXISTS creates nothing if the schema exists.
        if is_reserved_schema(session, name) and not (facts.if_not_exists and session.names.has_schema(name)):
            raise ReservedName(
                f'unacceptable schema name "{name}"',
                detail="It is reserved for DuckDB, ducktail or the database itself.",
            )


def refuse_relations(session: Context, facts: DdlFacts) -> None:
    """Refuse a table or view, temporary or not, under the name of one of DuckDB's own views.

    Raises:
        ReservedName: the name is reserved.
    """
    if facts.object_type in _RELATIONS:
        made = [name[-1] for name in facts.names] if facts.verb == "CREATE" else []
        _refuse(session, [*made, *([] if facts.renamed is None else [facts.renamed])])


def refuse_stream(session: Context, node: object) -> None:
    """Refuse a stream or topic with such a name, which its view would have too.

    Raises:
        ReservedName: the name is reserved.
    """
    if isinstance(node, st.CreateStream | st.CreateTopic | st.CreateMirror):
        _refuse(session, [node.name.last])
    elif isinstance(node, st.RenameStream):
        _refuse(session, [node.new])


def _refuse(session: Context, names: Iterable[str]) -> None:
    sql = (
        "SELECT 1 FROM system.main.duckdb_views() WHERE internal AND database_name = 'system' "
        f"AND schema_name = 'main' AND {folded_sql('view_name')} = $1 LIMIT 1"
    )
    for name in names:
        if ask_maybe(session.meta, sql, [fold(name)]) is not None:
            raise ReservedName(
                f'unacceptable name "{name}"', detail="It is reserved for a view of DuckDB's own."
            )


def refuse_inside(session: Context, tokens: Sequence[Token]) -> None:
    """Refuse a text that may use an existing schema with a reserved name.

    Such a schema was created outside ducktail, or by an earlier version. Superusers are not restricted, so
    that they can drop it.

    Raises:
        NotSupported: the text names such a schema.
    """
    found = _present(session)
    if not found:
        return
    named = {fold(token.name) for token in tokens if token.is_name}
    hit = next(iter(sorted(found & (named | {fold(schema) for schema in session.names.path}))), None)
    if hit is not None:
        raise NotSupported(
            f'schema "{hit}" is not supported: its name is reserved',
            hint="A superuser can move what it holds into another schema, and drop it.",
        )


def _present(session: Context) -> frozenset[str]:
    """The schemas of the database with reserved names, except ducktail's own."""
    schemas = session.names.objects().schemas
    return frozenset(name for name in schemas if name != SCHEMA and is_reserved_schema(session, name))
