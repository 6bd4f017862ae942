"""CREATE, ALTER, DROP and COMMENT of DuckDB's own objects, with protection of ducktail's.

A captured table changes only in ways that its streams can express (`engine/table_changes/alter_table.py`),
a stream's view belongs to its stream, and schema `ducktail` to ducktail. DDL on a table counts as a write:
a CREATE STREAM on it waits for the DDL.

CREATE OR REPLACE TABLE ... AS of a captured table keeps the table, with its primary key, its other
constraints and indexes (which DuckDB's own would drop), and the rights on it: its rows are replaced, and the
differences become events. The query is evaluated once, into a temporary table. If its columns differ, a new
table takes the place of the old one (`engine/table_changes/renames.py`), with its key and the rights on it.

Source: docs/sql.md, "Streams"; docs/refreshes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

import duckdb

from ...engine.capture.difference import check_key, plan_refresh
from ...engine.catalog.captured_tables import Captured
from ...engine.catalog.filters import types_in
from ...engine.catalog.triggers import read_triggers
from ...engine.definitions import drop, stream_spec
from ...engine.definitions.mirrors import drop_mirror, refuse_mirror
from ...engine.duck.cursors import ask
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.identities import name_in, own_sequences
from ...engine.duck.objects import DEFAULT_SCHEMA, TABLE, TEMPORARY, read_objects
from ...engine.duck.table_shape import RESERVED_PREFIX, Index, indexes_of
from ...engine.errors import DependentObjects, InsufficientPrivilege, LockNotAvailable, NotSupported
from ...engine.quoting import fold, folded_sql, ident
from ...engine.table_changes import alter_table, renames, schema_tables
from ...engine.transactions.transaction import CommitStep, Transaction
from ...engine.transactions.transactions import stale
from ...engine.waiting import Waiting
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.names import OURS, Key
from ..session_state.queries import refuse_captured
from ..session_state.run_text import count_of, placed
from ..text.classified import Classified, DdlFacts, Name, TokenReader
from . import comments, rebuild, reserved_names

# Changes that ALTER TABLE may make to a table with streams (`classify_ddl`).
ALTERED = frozenset(
    {
        *("ADD COLUMN", "DROP COLUMN", "RENAME COLUMN", "ALTER TYPE", "RENAME TO"),
        *("SET NOT NULL", "DROP NOT NULL", "SET DEFAULT", "DROP DEFAULT"),
    }
)
# Actions that DuckDB refuses for a table with indexes.
BESIDE_INDEXES = frozenset({"", "SET NOT NULL", "DROP NOT NULL", "RENAME COLUMN", "RENAME TO"})
# Kinds of named objects that hide DuckDB's own of the same name: the kind, and its listing.
BUILT_IN = {
    "MACRO": ("function", f"system.main.duckdb_functions() WHERE internal AND {folded_sql('function_name')}"),
    "TYPE": ("type", f"system.main.duckdb_types() WHERE internal AND {folded_sql('type_name')}"),
}


def define(session: Context, classified: Classified, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run a DDL text: the user's own, or the same with its stream scans replaced."""
    facts = classified.ddl
    assert facts is not None
    reserved_names.refuse_schema(session, facts)
    _guard_names(facts)
    _guard_functions(session, classified, facts)
    _guard_own_tables(session, facts)
    mirror = _guard_mirrors(session, classified, facts)
    if mirror is not None:
        return (yield from _drop_mirror(session, mirror))
    captured = _captured_to_drop(session, facts)
    if captured is not None:
        return (yield from _drop_captured(session, classified, captured))
    given_up = _captured_to_give_up(session, facts)
    if given_up is not None:
        return (yield from _give_up_captured(session, classified, given_up))
    altered = _captured_to_alter(session, facts)
    if altered is not None:
        return (yield from _alter_captured(session, classified, altered))
    replaced = replaced_captured(session, facts)
    if replaced is not None:
        if classified.cte_writes:
            refuse_captured(session, classified.text)
        session.names.refuse_hidden(replaced.key)
        return (yield from replace(session, classified, parameters, replaced))
    if facts.object_type == "TRIGGER":
        return (yield from _define_trigger(session, classified))
    indexed = _captured_to_index(session, facts)
    if indexed is not None:
        return (yield from _index_captured(session, classified, indexed))
    keys = _guard(session, facts)
    if classified.may_write:
        keys += refuse_captured(session, classified.text) if classified.cte_writes else []
    if facts.verb == "CREATE":
        _guard_built_in(session, facts)
    made = _made_in_captured_schema(session, facts)
    if made is not None:
        return (yield from _make_captured(session, classified, parameters, made, keys))
    if session.block.begun:
        session.block.touched()
    transactions = session.database.transactions
    if facts.renamed is not None and session.block.transaction is not None:
        within, timeout_ms = session.block.transaction, session.block.lock_timeout_ms
        for key in keys:
            yield from renames.claim_table(session.database, within, key, facts.renamed, timeout_ms)
    keys += _schema_of_tables(session, facts)
    drops = facts.verb == "DROP" and facts.object_type == "TABLE"
    gone = [session.names.table_key(name) for name in facts.names] if drops else []
    try:
        for key in keys:
            free = yield from session.block.enter_plain(key, drops=facts.verb == "DROP")
            if not free and not _harmless(facts):
                raise LockNotAvailable(f'table "{key[-1]}" has just got a stream', hint="Try again.")
        if _made_in_captured_schema(session, facts) is not None:
            raise LockNotAvailable("the schema has just got a stream on all of its tables", hint="Try again.")
        # Others see a block's changes when it commits.
        changes = session.database.catalog.changes
        changing = (
            nullcontext() if session.block.begun else changes.changing(macros=_may_concern_macros(facts))
        )
        try:
            with changing:
                if facts.verb == "DROP" and facts.cascade:
                    rows = _drop_cascade(session, classified, facts)
                elif own := _own_sequences(session, facts):
                    with _one_transaction(session):
                        rows = count_of(session, classified.text, parameters)
                        _drop_sequences(session, own)
                elif change := rebuild.change_of(session, classified):
                    rows = _create_again(session, change)
                elif facts.verb == "COMMENT":
                    with _one_transaction(session):
                        rows = comments.comment(session, classified)
                elif indexes := _indexes_aside(session, facts):
                    rows = _alter_with_indexes(session, classified, facts, indexes)
                else:
                    rows = count_of(session, classified.text, parameters)
            schema_tables.forget_aside(session.database, session.cursor, gone, session.block.transaction)
        except duckdb.Error as error:
            raise translated(error, classified.text) from error
    finally:
        if not session.block.begun:
            transactions.gate.leave(session.id)
    session.block.defined()
    if facts.object_type == "INDEX":
        _note_index(session)
    if session.database.catalog.triggers.all and (facts.verb == "DROP" or facts.or_replace):
        _note_triggers(session)
    _note_temporary(session, facts)
    if facts.as_select:
        return Result.command(f"SELECT {rows}")
    return Result.command(f"{facts.verb} {facts.object_type}")


def _may_concern_macros(facts: DdlFacts) -> bool:
    """True if a statement may make, change or drop a macro."""
    return not (facts.verb in ("CREATE", "ALTER") and facts.object_type in ("TABLE", "VIEW", "INDEX"))


def _made_in_captured_schema(session: Context, facts: DdlFacts) -> Key | None:
    """The new name of a table in a schema over all of whose tables there are streams, from CREATE or ALTER
    TABLE; the table is in none of the streams yet."""
    if facts.object_type != "TABLE" or facts.table is None or facts.temporary:
        return None
    if facts.verb == "CREATE":
        key = session.names.made_key(facts.table)
    elif facts.verb == "ALTER" and facts.renamed is not None:
        schema, _ = session.names.table_key(facts.table)
        key = (schema, fold(facts.renamed))
    else:
        return None
    if key in session.block.tables or not session.database.catalog.over_schema(key[0]):
        return None
    if facts.if_not_exists and session.names.kind_of(key) is not None:
        return None  # It creates no table.
    return key


def _schema_of_tables(session: Context, facts: DdlFacts) -> list[Key]:
    """The name under which changes of a schema's tables are registered."""
    if facts.object_type != "TABLE" or facts.table is None or facts.temporary:
        return []
    schema = _key(session, facts, facts.table)[0]
    return [] if schema in (TEMPORARY, OURS) else [stream_spec.all_of(schema)]


def _make_captured(
    session: Context,
    classified: Classified,
    parameters: tuple[object, ...],
    made: Key,
    changed: list[Key],
) -> Waiting[Result]:
    """Run CREATE TABLE in a schema with streams over all tables: all of the table's rows are events.

    Args:
        made: the name of the new table.
        changed: the tables that the statement changes.
    """
    facts = classified.ddl
    assert facts is not None
    session.names.refuse_hidden(made)

    def work(transaction: Transaction) -> Waiting[int]:
        timeout_ms, annotation = session.block.lock_timeout_ms, session.variables.annotation
        transaction.ddl = True
        yield from schema_tables.enter_to_make(session.database, transaction, made, annotation, timeout_ms)
        for key in changed:
            free = yield from session.block.enter_plain(key)
            # Another transaction may have created it meanwhile: DuckDB reports that for a CREATE TABLE.
            if not free and (facts.verb != "CREATE" or facts.or_replace):
                raise LockNotAvailable(f'table "{key[-1]}" has just got a stream', hint="Try again.")
        try:
            rows = count_of(session, classified.text, parameters)
            if facts.verb == "ALTER":
                schema_tables.forget_aside(session.database, session.cursor, changed, transaction)
        except duckdb.Error as error:
            raise translated(error, classified.text) from error
        return rows

    rows = yield from session.block.unit(work)
    session.block.defined()
    return Result.command(f"SELECT {rows}" if facts.as_select else f"{facts.verb} TABLE")


def drops_captured(session: Context, facts: DdlFacts) -> bool:
    """True for a DROP TABLE of a mirror, or with CASCADE of a captured table: a transaction of its own."""
    if facts.verb == "DROP" and facts.object_type == "TABLE" and session.database.catalog.mirrors:
        if any(session.names.table_key(name) in session.database.catalog.mirrors for name in facts.names):
            return True
    return _captured_to_drop(session, facts) is not None


def alters_captured(session: Context, facts: DdlFacts) -> bool:
    """True for an ALTER TABLE that begins the next version of a captured table."""
    return _captured_to_alter(session, facts) is not None


def _captured_to_alter(session: Context, facts: DdlFacts) -> Key | None:
    """The captured table that an ALTER TABLE changes in a supported way."""
    if facts.verb != "ALTER" or facts.action not in ALTERED or facts.table is None:
        return None
    key = session.names.table_key(facts.table)
    return key if key in session.block.tables else None


def _alter_captured(session: Context, classified: Classified, key: Key) -> Waiting[Result]:
    """Run ALTER TABLE of a table with streams: each stream gets an event of it in each partition."""
    facts = classified.ddl
    assert facts is not None
    for stream in session.block.tables[key].streams:
        session.names.refuse_hidden_of(stream)
    retypes = facts.action == "ALTER TYPE"
    rewrites = retypes and any(token.kind == "USING" for token in classified.tokens)
    annotation = session.variables.annotation
    asked = alter_table.Alteration(classified.text, facts.renamed, annotation, retypes, rewrites)

    def work(transaction: Transaction) -> Waiting[None]:
        timeout_ms = session.block.lock_timeout_ms
        yield from _enter_judged(session, transaction, key, classified)
        yield from alter_table.alter_table(session.database, transaction, key, asked, timeout_ms)

    yield from session.block.unit(work)
    session.block.defined()
    return Result.command("ALTER TABLE")


def _enter_judged(
    session: Context, transaction: Transaction, key: Key, classified: Classified
) -> Waiting[Captured]:
    """Enter a captured table, and check rights again: another table may have got its name during the wait."""
    timeout_ms, transactions = session.block.lock_timeout_ms, session.database.transactions
    captured = yield from transactions.enter_still_captured(transaction, key, timeout_ms)
    transaction.ddl = True
    session.judge(classified)
    return captured


def _captured_to_index(session: Context, facts: DdlFacts) -> Key | None:
    """The captured table that a CREATE INDEX is on."""
    if facts.verb != "CREATE" or facts.object_type != "INDEX" or facts.table is None:
        return None
    key = session.names.table_key(facts.table)
    return key if key in session.block.tables else None


def _index_captured(session: Context, classified: Classified, key: Key) -> Waiting[Result]:
    """Create an index of a table with streams, under the writer lock.

    DuckDB allows a rename or drop of the table in a concurrent transaction that does not see the index. The
    result would be an index without a table, with which no table can be written any more.
    """
    facts = classified.ddl
    assert facts is not None
    _guard_names(facts)

    def work(transaction: Transaction) -> Waiting[None]:
        yield from _enter_judged(session, transaction, key, classified)
        _run_by_duckdb(session, classified)

    yield from session.block.unit(work)
    session.block.defined()
    _note_index(session)
    return Result.command("CREATE INDEX")


def _define_trigger(session: Context, classified: Classified) -> Waiting[Result]:
    """Run CREATE or DROP TRIGGER under the writer lock, so that no stream is created on its tables
    meanwhile."""
    facts = classified.ddl
    assert facts is not None
    transactions = session.database.transactions

    def work(transaction: Transaction) -> Waiting[None]:
        yield from transactions.lock_for(transaction, session.block.lock_timeout_ms)
        transaction.ddl = True
        _run_by_duckdb(session, classified)
        tables = [*transactions.tables(transaction), *session.database.catalog.mirrors]
        there = read_triggers(transaction.cursor)
        if facts.verb == "CREATE" and any(there.on(key) for key in tables):
            raise NotSupported(
                "a table with streams cannot have a trigger",
                hint="A stream gives its changes: a program that reads them can write others.",
            )
        ours = [one.key for one in session.names.objects() if one.kind == TABLE and one.key[0] == OURS]
        if facts.verb == "CREATE" and any(there.that_write([*tables, *ours])):
            raise NotSupported(
                "a trigger cannot write a table with streams",
                detail="What a trigger writes is not captured. A table that it names without its schema may "
                "be one of that name in any schema.",
                hint="Write the schema before the table's name, or drop the streams.",
            )

    yield from session.block.unit(work)
    session.block.defined()
    _note_triggers(session)
    return Result.command(f"{facts.verb} TRIGGER")


def _note_triggers(session: Context) -> None:
    """Make the engine read the triggers again once the statement is committed."""
    transactions = session.database.transactions
    if session.block.begun:
        session.block.opened().at(CommitStep.WAKE, transactions.look_for_triggers)
    else:
        transactions.look_for_triggers()


def _run_by_duckdb(session: Context, classified: Classified) -> None:
    """Run the user's own text in the transaction that has the table's lock."""
    try:
        count_of(session, classified.text, ())
    except duckdb.Error as error:
        raise translated(error, classified.text) from error


def _captured_to_give_up(session: Context, facts: DdlFacts) -> Key | None:
    """The captured table whose place another one may take until COMMIT.

    It is the table of a DROP TABLE inside a transaction, or of one whose streams continue without it, or of a
    CREATE OR REPLACE TABLE with a list of columns.
    """
    if facts.object_type != "TABLE" or facts.table is None or len(facts.names) > 1 or facts.temporary:
        return None
    if facts.verb == "DROP":
        key = session.names.table_key(facts.table)
        captured = session.block.tables.get(key)
        if captured is not None and captured.may_go:
            return key
        if not session.block.begun or facts.cascade:
            return None
    elif facts.verb == "CREATE" and facts.or_replace and not facts.as_select:
        key = session.names.made_key(facts.table)
    else:
        return None
    return key if key in session.block.tables else None


def _give_up_captured(session: Context, classified: Classified, key: Key) -> Waiting[Result]:
    """Drop or recreate a table with streams; the table that they follow is determined at COMMIT."""
    facts = classified.ddl
    assert facts is not None
    for stream in session.block.tables[key].streams:
        session.names.refuse_hidden_of(stream)

    def work(transaction: Transaction) -> Waiting[None]:
        timeout_ms, annotation = session.block.lock_timeout_ms, session.variables.annotation
        yield from _enter_judged(session, transaction, key, classified)
        yield from renames.drop(session.database, transaction, key, annotation, timeout_ms)
        if facts.verb == "CREATE":
            _run_by_duckdb(session, classified)

    yield from session.block.unit(work)
    session.block.defined()
    return Result.command(f"{facts.verb} TABLE")


def replaced_captured(session: Context, facts: DdlFacts) -> Captured | None:
    """The captured table whose rows a CREATE OR REPLACE TABLE ... AS replaces; the table itself stays."""
    if facts.verb != "CREATE" or facts.object_type != "TABLE" or facts.table is None:
        return None
    if facts.temporary or not (facts.or_replace and facts.as_select):
        return None
    return session.block.tables.get(session.names.made_key(facts.table))


def _captured_to_drop(session: Context, facts: DdlFacts) -> Captured | None:
    """The captured table that a DROP TABLE ... CASCADE names."""
    if facts.verb != "DROP" or facts.object_type != "TABLE" or not facts.cascade:
        return None
    keys = [session.names.table_key(name) for name in facts.names]
    tables = session.block.tables
    found = next((tables[key] for key in keys if key in tables), None)
    if found is not None and len(keys) > 1:
        raise NotSupported(
            f'DROP TABLE of several tables is not supported where one has streams: "{found.shape.name}"',
            hint="DROP TABLE it by itself.",
        )
    if found is None or found.may_go:
        return None  # Its streams continue without it.
    if any(stream.of_schema is not None for stream in found.streams):
        raise _streams_beside(found)
    return found


def _streams_beside(captured: Captured) -> DependentObjects:
    return DependentObjects(
        f'cannot drop table "{captured.shape.name}" because it has streams beside one on all tables',
        hint="DROP STREAM those that are on it by name, and then the table: that one goes on.",
    )


def _drop_captured(session: Context, classified: Classified, captured: Captured) -> Waiting[Result]:
    """Run DROP TABLE ... CASCADE of a table with streams, which are dropped with it, read or not."""
    session.block.refuse_within("DROP TABLE of a table with streams")
    for stream in captured.streams:
        session.names.refuse_hidden_of(stream)
    told = {stream.stream_id for stream in captured.streams if session.access.sees(stream.key)}
    dropped = yield from drop.drop_table(
        session.database,
        session.id,
        session.cursor,
        captured.key,
        session.block.lock_timeout_ms,
        lambda: session.judge(classified),
    )
    for stream in dropped:
        if stream.stream_id in told:
            session.notices.add(f'drop cascades to stream "{stream.name}"')
    return Result.command("DROP TABLE")


def _drop_cascade(session: Context, classified: Classified, facts: DdlFacts) -> int:
    """Run DROP ... CASCADE, by which DuckDB drops tables that the statement does not name."""
    with _one_transaction(session):
        before = read_objects(session.cursor, session.database.catalog_name)
        own = _own_sequences(session, facts)
        rows = count_of(session, classified.text, ())
        _drop_sequences(session, own)
        there = read_objects(session.cursor, session.database.catalog_name)
        if any(one.key[0] == OURS and there.identity(one) != one.oid for one in before):
            raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
        mirrors = session.database.catalog.mirrors
        gone = [key for key in (*session.block.tables, *mirrors) if there.get(TABLE, *key) is None]
        if gone:
            raise DependentObjects(
                f'cannot drop "{facts.names[0][-1]}" because table "{gone[0][-1]}", which has streams, '
                "depends on it",
                hint="DROP STREAM first.",
            )
    return rows


def _own_sequences(session: Context, facts: DdlFacts) -> list[str]:
    """The sequences of the columns of a table that the statement drops or replaces, as SQL."""
    if facts.object_type != "TABLE" or facts.table is None:
        return []
    if facts.verb == "CREATE" and facts.or_replace:
        schema, name = session.names.made_key(facts.table)
        objects = session.names.temporary_objects() if facts.temporary else session.names.objects()
        found = objects.get(TABLE, DEFAULT_SCHEMA if facts.temporary else schema, name)
    elif facts.verb == "DROP":
        found = session.names.resolver.find(TABLE, facts.table)
    else:
        return []
    if found is None or found.kind != TABLE:
        return []
    cursor = session.cursor if found.temporary else session.names.cursor()
    return [name_in(literal) for _, literal in own_sequences(cursor, found).values()]


def _drop_sequences(session: Context, names: Sequence[str]) -> None:
    for name in names:
        count_of(session, f"DROP SEQUENCE IF EXISTS {name}", ())


def _indexes_aside(session: Context, facts: DdlFacts) -> list[Index]:
    """The indexes that DuckDB requires to be dropped before an ALTER TABLE of their table."""
    if facts.verb != "ALTER" or facts.action not in BESIDE_INDEXES or facts.table is None:
        return []
    found = session.names.resolver.find(TABLE, facts.table)
    if found is None or found.kind != TABLE or found.temporary:
        return []
    return indexes_of(session.names.cursor(), found.schema, found.name)


def _alter_with_indexes(
    session: Context, classified: Classified, facts: DdlFacts, indexes: Sequence[Index]
) -> int:
    """Run ALTER TABLE in one transaction with the drop of the table's indexes and their creation."""
    assert facts.table is not None
    found = session.names.resolver.find(TABLE, facts.table)
    assert found is not None
    schema, table, column = ident(found.schema), facts.renamed or found.name, _renamed_column(classified)
    if column is not None and any(_uses(index, column[0]) for index in indexes):
        return count_of(session, classified.text, ())  # DuckDB refuses it.
    statements = [f"DROP INDEX {schema}.{ident(index.name)}" for index in indexes]
    statements.append(classified.text)
    for index in indexes:
        elements = ", ".join(_renamed(element, column) for element in index.expressions)
        unique = "UNIQUE " if index.unique else ""
        statements.append(f"CREATE {unique}INDEX {ident(index.name)} ON {schema}.{ident(table)} ({elements})")
    with _one_transaction(session):
        for statement in statements:
            count_of(session, statement, ())
    _note_index(session)
    return 0


def _create_again(session: Context, change: rebuild.Change) -> int:
    """Create a table again with a change that DuckDB does not make."""
    with _one_transaction(session):
        for statement in rebuild.statements(session, change):
            count_of(session, statement, ())
    _note_index(session)
    return 0


def _renamed_column(classified: Classified) -> tuple[str, str] | None:
    """The old and the new name in RENAME [COLUMN] a TO b."""
    assert classified.ddl is not None
    if classified.ddl.action != "RENAME COLUMN":
        return None
    old, _, new = classified.tokens[-3:]
    return old.name, new.name


def _uses(index: Index, column: str) -> bool:
    """True if an expression of the index may use a column."""
    return any(e.startswith("(") and fold(column) in fold(e) for e in index.expressions)


def _renamed(element: str, column: tuple[str, str] | None) -> str:
    """An element of an index, after a column was renamed."""
    name = element[1:-1].replace('""', '"') if element.startswith('"') else element
    return ident(column[1]) if column is not None and fold(name) == fold(column[0]) else element


@contextmanager
def _one_transaction(session: Context) -> Iterator[None]:
    """Context of several statements of DuckDB's that are one transaction, the block's or their own."""
    outside = not session.block.begun
    if outside:
        session.cursor.execute("BEGIN")
    try:
        yield
    except BaseException:
        if outside:
            with suppress(duckdb.Error):
                session.cursor.execute("ROLLBACK")
        raise
    if outside:
        session.cursor.execute("COMMIT")


def _tables(session: Context) -> list[Key]:
    """All tables of the database except ducktail's own."""
    return [one.key for one in session.names.objects() if one.kind == TABLE and one.key[0] != OURS]


def _guard_built_in(session: Context, facts: DdlFacts) -> None:
    """Refuse a macro or a type with a built-in name (such as json), which would change internal SQL."""
    asked = BUILT_IN.get(facts.object_type)
    if asked is None:
        return
    what, there = asked
    for name in facts.names:
        (count,) = ask(session.meta, f"SELECT count(*) FROM {there} = $1", [fold(name[-1])])
        if count:
            made = facts.object_type.lower()
            raise NotSupported(
                f'"{name[-1]}" is a built-in {what}, and a {made} cannot take its name',
                hint=f"Give the {made} a name of its own.",
            )


def _harmless(facts: DdlFacts) -> bool:
    """True if the statement leaves the columns and rows of a captured table unchanged."""
    return facts.verb == "COMMENT"


def _guard(session: Context, facts: DdlFacts) -> list[Key]:
    """Refuse changes that would break a stream; returns the tables that the statement changes."""
    if facts.verb == "CREATE" and facts.temporary:
        return []  # It hides a table of its name from this session, and changes none.
    if facts.object_type == "SCHEMA":
        for name in facts.names:
            _guard_schema(session, facts, fold(name[-1]))
    if facts.object_type in ("SCHEMA", "TYPE") and (facts.verb == "DROP" or facts.or_replace):
        _guard_types(session, facts)
    if facts.verb == "DROP" and facts.cascade:
        # Any table may be dropped with it: a concurrent CREATE STREAM must wait.
        return [key for key in _tables(session) if key not in session.block.tables]
    if facts.object_type == "SCHEMA":
        return []
    for name in facts.names:
        if len(name) > 1 and fold(name[-2]) == OURS and facts.object_type != "COLUMN":
            raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
    if facts.object_type in ("TABLE", "VIEW", "CONSTRAINT"):
        for name in facts.names:
            _guard_relation(session, facts, name)
    elif facts.object_type == "COLUMN" and facts.table is not None:
        _guard_relation(session, facts, facts.table)
    if facts.table is None:
        return []
    key = _key(session, facts, facts.table)
    if key[0] == OURS:
        raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
    if key in session.block.tables:
        if not _harmless(facts):
            _refuse_captured_ddl(facts, session.block.tables[key])
        return []
    return [key] if key[0] != TEMPORARY else []


def _guard_own_tables(session: Context, facts: DdlFacts) -> None:
    """Refuse changes of captured tables of our own, such as those with the rows of a source."""
    if facts.temporary or facts.object_type not in ("TABLE", "INDEX", "TRIGGER"):
        return
    names = list(facts.names) if facts.object_type == "TABLE" else []
    keys = [session.names.table_key(name) for name in (*names, *([facts.table] if facts.table else []))]
    if any(key[0] == OURS and key in session.block.tables for key in keys):
        raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')


def _guard_mirrors(session: Context, classified: Classified, facts: DdlFacts) -> Key | None:
    """Refuse changes of mirrors other than their DROP.

    A feed must not find at its COMMIT that a mirror has changed: DuckDB cannot take back a commit that
    deletes and inserts the same key, and invalidates the database.

    Returns:
        The mirror that a DROP TABLE names.
    """
    mirrors = session.database.catalog.mirrors
    if not mirrors or facts.temporary:
        return None
    names = list(facts.names) if facts.object_type == "TABLE" else []
    keys = [session.names.table_key(name) for name in (*names, *([facts.table] if facts.table else []))]
    for at, token in enumerate(classified.tokens):
        if token.kind == "REFERENCES":
            reader = TokenReader(classified.text, classified.tokens[at + 1 :])
            keys.append(session.names.table_key(reader.qualified()))
    found = next((key for key in keys if key in mirrors), None)
    if found is None:
        return None
    if facts.verb == "DROP" and facts.object_type == "TABLE":
        if len(facts.names) > 1:
            raise NotSupported(
                f'DROP TABLE of several tables is not supported where one is a mirror: "{found[-1]}"',
                hint="DROP TABLE it by itself.",
            )
        return found
    makes = facts.verb == "CREATE" and facts.object_type == "TABLE" and not facts.or_replace
    if not makes or session.names.made_key(facts.names[0]) != found:
        refuse_mirror(session.database.catalog, found, "be changed, indexed or referenced")
    return None  # DuckDB reports that the name is taken.


def _drop_mirror(session: Context, key: Key) -> Waiting[Result]:
    """Run DROP TABLE of a mirror, in a transaction of its own."""
    session.block.refuse_within("DROP TABLE of a mirror")
    timeout_ms = session.block.lock_timeout_ms
    yield from drop_mirror(session.database, session.id, session.cursor, key, timeout_ms)
    session.block.defined()
    return Result.command("DROP TABLE")


def _key(session: Context, facts: DdlFacts, name: Name) -> Key:
    """The table or view of a name: a new one is created in the search path's first schema."""
    if facts.verb == "CREATE" and facts.object_type != "INDEX":
        return session.names.made_key(name)
    return session.names.table_key(name)


def _guard_names(facts: DdlFacts) -> None:
    """Refuse reserved names in new objects, references and new names of tables."""
    for name in (*facts.names, *([] if facts.renamed is None else [(facts.renamed,)])):
        if any(fold(part).startswith(RESERVED_PREFIX) for part in name):
            raise InsufficientPrivilege(f'names that begin with "{RESERVED_PREFIX}" are ducktail\'s own')


def _guard_functions(session: Context, classified: Classified, facts: DdlFacts) -> None:
    """Refuse a table, an index or a trigger that could not be used without functions outside of the file.

    Only a session of the wire has them: a write in process, or of DuckDB's own, would fail.
    """
    stored = facts.object_type in ("INDEX", "TRIGGER") or (
        facts.object_type == "TABLE" and not facts.as_select and "TYPE" not in facts.action
    )
    if not session.path_functions or not stored or facts.verb not in ("CREATE", "ALTER"):
        return
    operators = [name for name in session.path_functions if not name[0].isalpha() and name[0] != "_"]
    before, *rest = classified.tokens
    for token in rest:
        called = token.kind == "(" and before.is_word and fold(before.text) in session.path_functions
        written = next((name for name in operators if classified.text.startswith(name, token.start)), None)
        if called or written is not None:
            what = f'function "{before.text}"' if written is None else "an operator of PostgreSQL's"
            raise NotSupported(
                f"{what} cannot be stored in a {facts.object_type.lower()}",
                detail="It is not DuckDB's own, so the file could not be used without ducktail's server.",
                position=(before if written is None else token).start + 1,
            )
        before = token


def _guard_types(session: Context, facts: DdlFacts) -> None:
    """Refuse to drop or change a type that a stream's filter names."""
    filters = [s.filter for s in list(session.database.catalog.streams.values()) if s.filter is not None]
    types = {found for text in filters for found in types_in(session.meta, text)}
    for name in facts.names:
        called, within = fold(name[-1]), fold(name[-2]) if len(name) > 1 else None
        if facts.object_type == "SCHEMA":
            hit = any(schema == called for schema, _ in types)
        else:
            hit = any(one == called and within in (None, schema) for schema, one in types)
        if hit:
            what = f'{facts.verb.lower()} {facts.object_type.lower()} "{name[-1]}"'
            raise DependentObjects(
                f"cannot {what} because a stream depends on it",
                detail="A stream's filter names the type, or one in the schema.",
                hint="SHOW STREAMS lists them. DROP STREAM first.",
            )


def _guard_schema(session: Context, facts: DdlFacts, schema: str) -> None:
    if schema == OURS:
        raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
    if facts.verb == "CREATE" and not facts.or_replace:
        return
    catalog = session.database.catalog
    inside = [key for key in (*catalog.streams, *catalog.tables) if key[0] == schema]
    inside += [stream.key for stream in catalog.over_schema(schema)]
    if inside and facts.verb != "COMMENT":
        raise DependentObjects(
            f'schema "{schema}" holds streams, topics or tables with streams: "{inside[0][1]}"',
            hint="Drop them first: SHOW STREAMS and SHOW TOPICS list them.",
        )
    mirrors = [key for key in catalog.mirrors if key[0] == schema]
    if mirrors and facts.verb != "COMMENT":
        raise DependentObjects(
            f'schema "{schema}" holds mirrors of sources: "{mirrors[0][1]}"', hint="DROP TABLE them first."
        )


def _guard_relation(session: Context, facts: DdlFacts, name: tuple[str, ...]) -> None:
    key = _key(session, facts, name)
    stream = session.database.catalog.stream_of_view(key)
    if stream is None:
        return
    if facts.verb == "CREATE" and not facts.or_replace:
        return  # DuckDB reports that the name is taken.
    what = f"is a {stream.kind}" if key == stream.key else f'is a view of stream "{stream.name}"'
    if facts.verb == "COMMENT":
        # The views are recreated at each change of the stream's columns or name.
        raise NotSupported(
            f'"{name[-1]}" {what}',
            hint=f"COMMENT ON {stream.kind.upper()} {ident(stream.name)} IS '...' comments on that.",
        )
    raise NotSupported(
        f'"{name[-1]}" {what}',
        hint=f"DROP {stream.kind.upper()} {ident(stream.name)} drops it with its views.",
    )


def _refuse_captured_ddl(facts: DdlFacts, captured: Captured) -> None:
    if facts.verb == "CREATE" and not facts.or_replace:
        return  # DuckDB reports that the table exists.
    name = captured.shape.name
    if facts.verb == "DROP" and captured.may_go:
        raise NotSupported(
            f'DROP TABLE of several tables is not supported: "{name}" has a stream',
            hint="DROP TABLE it by itself: its streams go on.",
        )
    if facts.verb == "DROP" and any(stream.of_schema is not None for stream in captured.streams):
        raise _streams_beside(captured)
    if facts.verb == "DROP":
        raise DependentObjects(
            f'cannot drop table "{name}" because it has streams',
            hint="DROP TABLE ... CASCADE drops them with it; SHOW STREAMS lists them.",
        )
    if facts.verb == "ALTER":
        raise alter_table.not_supported(name)
    raise NotSupported(
        f'{facts.verb} TABLE of table "{name}" is not supported while it has a stream',
        hint="DROP STREAM first, change the table, and make the stream again.",
    )


def _note_index(session: Context) -> None:
    """Make the engine read the unique columns again, now and after the COMMIT."""
    database = session.database

    def changed() -> None:
        database.transactions.indexes_changed = True

    if session.block.begun:
        session.block.opened().indexes_changed = True
        session.block.opened().at(CommitStep.MEMORY, changed)
    else:
        changed()


def _note_temporary(session: Context, facts: DdlFacts) -> None:
    """Remember temporary tables, which hide others of the same name from now on."""
    known = session.names.temporary
    session.names.changed()
    if facts.renamed is not None and fold(facts.names[0][-1]) in known:
        known.add(fold(facts.renamed))
    for name in facts.names:
        temporary = facts.temporary or (len(name) > 1 and fold(name[0]) == TEMPORARY)
        if facts.verb == "CREATE" and temporary:
            known.add(fold(name[-1]))


NEW = f"{RESERVED_PREFIX}_new"


def replace(
    session: Context, classified: Classified, parameters: tuple[object, ...], captured: Captured
) -> Waiting[Result]:
    """Replace the rows of a captured table by a query's.

    Raises:
        NotSupported: the table has no primary key, or the query lacks its columns.
        UniqueViolation, NotNullViolation: the query's rows violate the primary key.
        LockNotAvailable: the table's lock was not granted in time.
        SerializationFailure: the table was written since the transaction began to read.
    """
    facts = classified.ddl
    assert facts is not None and facts.list_offset is not None
    _refuse_unfit(captured)
    # Include the names of the columns, which may follow the table's name.
    query = classified.text[facts.list_offset :]
    transactions = session.database.transactions

    anew = False

    def work(transaction: Transaction) -> Waiting[int]:
        nonlocal anew
        timeout_ms = session.block.lock_timeout_ms
        present = yield from transactions.enter_captured(transaction, captured.key, timeout_ms)
        if present is None:
            gone = f'table "{captured.shape.name}" has just lost its streams'
            raise LockNotAvailable(gone, hint="Try again.")
        transaction.ddl = True
        session.judge(classified)
        if session.database.snapshots.has_newer(transaction, present):
            raise stale(present)  # Rows that the snapshot does not show would remain beside the query's.
        transaction.annotate(session.variables.annotation)
        cursor = session.cursor
        try:
            rows = count_of(session, f"CREATE TEMP TABLE {NEW} {query}", parameters)
        except duckdb.Error as error:
            told = placed(session, error, classified.text)
            told.position = None  # The position would be that of an internal text.
            raise told from error
        columns = _columns(cursor, present.shape.qualified)
        if not present.shape.primary_key or _columns(cursor, f"temp.main.{NEW}") != columns:
            anew = True
            yield from _swap(session, transaction, present)
            return rows
        check_key(cursor, f"temp.main.{NEW}", present.shape)
        minimal = present.minimal_changes != "none"
        plan = plan_refresh(present.table, f"temp.main.{NEW}", minimal=minimal)
        try:
            transactions.write_captured(transaction, present, plan, ())
        except duckdb.Error as error:
            raise placed(session, error, classified.text) from error
        cursor.execute(f"DROP TABLE temp.main.{NEW}").fetchall()
        return rows

    rows = yield from session.block.unit(work)
    if captured.shape.primary_key or not anew:
        other = "it has other columns now, and the primary key that it had"
        stays = "its rows are replaced, and what it is made of stays"
        session.notices.add(f'table "{captured.shape.name}" has streams: {other if anew else stays}')
    return Result.command(f"SELECT {rows}")


def _refuse_unfit(captured: Captured) -> None:
    name = captured.shape.name
    if not captured.shape.primary_key and not captured.may_go:
        raise NotSupported(
            f'table "{name}" has streams and no primary key: CREATE OR REPLACE cannot tell its rows apart',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )
    if captured.shape.generated:
        raise NotSupported(
            f'CREATE OR REPLACE of table "{name}", which has streams and generated columns, is not supported',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )


def _swap(session: Context, transaction: Transaction, present: Captured) -> Waiting[None]:
    """Replace a table by a new one with the query's columns."""
    database, annotation = session.database, session.variables.annotation
    timeout_ms = session.block.lock_timeout_ms
    yield from renames.drop(database, transaction, present.key, annotation, timeout_ms)
    columns = session.cursor.execute(
        "SELECT column_name, data_type FROM system.main.duckdb_columns() WHERE database_name = 'temp' "
        f"AND table_name = '{NEW}' ORDER BY column_index"
    ).fetchall()
    table, key = present.shape.qualified, present.shape.primary_key
    parts = [f"{ident(name)} {type_}" for name, type_ in columns]
    if key and {fold(name) for name in key} <= {fold(name) for name, _ in columns}:
        # A key of the new table is checked from the first row on; DuckDB would check an added one at COMMIT
        # only.
        parts.append(f"PRIMARY KEY ({', '.join(map(ident, key))})")
        check_key(session.cursor, f"temp.main.{NEW}", present.shape)
    try:
        for statement in (
            f"CREATE TABLE {table} ({', '.join(parts)})",
            f"INSERT INTO {table} FROM temp.main.{NEW}",
            f"DROP TABLE temp.main.{NEW}",
        ):
            session.cursor.execute(statement).fetchall()
        renames.settle(database, transaction, present.table_id)
    except duckdb.Error as error:
        raise translated(error) from error
    session.block.defined()


def _columns(cursor: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Name, in small letters, and type of each column."""
    cursor.execute(f"SELECT * FROM {table} LIMIT 0").fetchall()
    return [(fold(str(column[0])), str(column[1])) for column in cursor.description or []]
