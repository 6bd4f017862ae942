"""Runs a definition in PostgreSQL's form as statements in DuckDB's, in one transaction.

Each statement passes the one pipeline: its names are resolved, its rights checked, its writes captured. What
only the session can know is put in here: the name of a new sequence, the sequence of a column, the order in
which tables with foreign keys can be dropped. A temporary table with ON COMMIT is noted with the session,
which drops or empties it after the end of the transaction.

Source: docs/sql.md, "Definitions in PostgreSQL's form".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count

import duckdb

from ...engine.catalog.rights import Item, schema_item
from ...engine.duck.cursors import ask, ask_maybe
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.identities import ALWAYS, SERIAL, own_sequences
from ...engine.duck.objects import DEFAULT_SCHEMA, INDEX, SEQUENCE, TABLE, TEMPORARY, TYPE, Object
from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    InvalidSchemaName,
    NotSupported,
    UndefinedObject,
    UndefinedTable,
    WrongState,
)
from ...engine.quoting import fold, folded_sql, ident, literal
from ...engine.waiting import Waiting
from ..language.postgres_ddl import INDEX_NAME, Expansion, Restart, Serial, Step
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.names import OURS
from ..session_state.run_text import atomically
from ..session_state.statement import ParsedStatement
from ..settings import UNENFORCED
from ..text.classified import Classified, DdlFacts, Kind, Name
from ..text.spans import Replacement, cut, original_positions
from ..text.tokens import tokenize
from . import rebuild

Values = tuple[object, ...]
# The name of a foreign key, as PostgreSQL and ORMs form it: of a constraint that may have been omitted.
FOREIGN_KEY_NAME = re.compile(r"(?:^|_)fk(?:ey)?(?:_|$)", re.IGNORECASE)

_SESSION_USERS = frozenset({"current_user", "session_user", "current_role"})

_REFERENCES = (
    f"SELECT {folded_sql('table_name')}, {folded_sql('referenced_table')}, "
    f"{folded_sql('schema_name')} "
    "FROM system.main.duckdb_constraints() "
    "WHERE database_name = current_database() AND constraint_type = 'FOREIGN KEY'"
)


@dataclass(frozen=True, slots=True)
class _TableSchema:
    """The place of a table and of its sequences: the schema's name in SQL, with `temp` for temporary ones."""

    schema: str
    table: str
    temporary: bool

    def name(self, name: str) -> str:
        """A name in this schema, as SQL."""
        return f"{'temp.' if self.temporary else ''}{ident(self.schema)}.{ident(name)}"


def run_expanded(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run the statements in place of the user's, all of them or none."""
    expansion = statement.node
    assert isinstance(expansion, Expansion)
    for notice in expansion.notices:
        session.notices.add(notice)
    if expansion.unbuilt:
        _check_table(session, statement.classified, expansion)
    if _is_there(session, statement.classified) or not expansion.steps:
        return Result.command(_tag(statement.classified))
    if len(expansion.steps) == 1 and expansion.steps[0] == Step(expansion.steps[0].pieces):
        work = _Work(session, statement, parameters, expansion)
        if expansion.index is None and expansion.on_commit is None and expansion.cascades is None:
            return (yield from work.run(expansion.steps[0].pieces))
    first, apart = _divided(session, expansion)
    result = yield from atomically(session, lambda: _whole(session, statement, parameters, first))
    for step in apart:
        after = replace(expansion, steps=(step,))
        try:
            result = yield from atomically(session, partial(_whole, session, statement, parameters, after))
        except DucktailError:
            # The column has been committed without its constraint: none of the statement may stay.
            taken_back = _Work(session, statement, (), expansion)
            yield from atomically(session, partial(taken_back.drop_column, step.added))
            raise
    return result


def _divided(session: Context, expansion: Expansion) -> tuple[Expansion, tuple[Step, ...]]:
    """The expansion of one transaction, and the steps that need one of their own.

    Inside a transaction block such a step is left out, or refused: it cannot see the block's rows.
    """
    apart = tuple(step for step in expansion.steps if step.apart is not None)
    if not apart or not _has_rows(session, expansion):
        return expansion, ()
    first = replace(expansion, steps=tuple(step for step in expansion.steps if step.apart is None))
    if not session.block.begun:
        return first, apart
    refused = next((step.apart for step in apart if step.apart != "NOT NULL"), None)
    if refused is not None:
        raise NotSupported(
            f"ADD COLUMN with {refused} is not supported in a transaction, where the table has rows",
            detail="DuckDB computes the rows' values, and can compare them after COMMIT only.",
            hint=f"ADD COLUMN without {refused}, and add it in a transaction of its own.",
        )
    session.notices.add("NOT NULL has no effect in this transaction: SET NOT NULL after it")
    return first, ()


def _has_rows(session: Context, expansion: Expansion) -> bool:
    found = None if expansion.table is None else session.names.resolver.find(TABLE, expansion.table)
    if found is None or not (found.temporary or session.access.owns(session.access.item_of(found.key))):
        return False  # The check of rights reports the error.
    cursor = session.cursor if found.temporary else session.names.cursor()
    return ask_maybe(cursor, f"SELECT 1 FROM {found.in_full} LIMIT 1") is not None


def _is_there(session: Context, classified: Classified) -> bool:
    """True if CREATE TABLE IF NOT EXISTS names an existing relation; the client receives a NOTICE."""
    facts = classified.ddl
    if facts is None or facts.table is None or not (facts.if_not_exists and facts.object_type == "TABLE"):
        return False
    key = (TEMPORARY, fold(facts.table[-1])) if facts.temporary else session.names.made_key(facts.table)
    if session.names.kind_of(key) is None:
        return False
    session.notices.add(f'relation "{facts.table[-1]}" already exists, skipping', sqlstate="42P07")
    return True


def _check_table(session: Context, classified: Classified, expansion: Expansion) -> None:
    """Check the table of an index that is not built."""
    assert expansion.table is not None and classified.ddl is not None
    found = session.names.resolver.find(TABLE, expansion.table)
    if found is None:
        raise _undefined(expansion.table, classified.ddl.table_place or 0)
    if not (found.temporary or session.access.owns(session.access.item_of(found.key))):
        raise InsufficientPrivilege(f'must be owner of table "{found.name}"')


def _undefined(name: Name, place: int) -> UndefinedTable:
    return UndefinedTable(f'relation "{".".join(name)}" does not exist', position=place + 1)


def _tag(classified: Classified) -> str:
    return "TRUNCATE TABLE" if classified.verb == "TRUNCATE" else classified.verb


def _whole(
    session: Context, statement: ParsedStatement, parameters: Values, expansion: Expansion
) -> Waiting[Result]:
    expansion = _without_missing(session, statement.classified, expansion)
    work = _Work(session, statement, parameters, expansion)
    _refuse_streams(session, statement.classified)
    result = Result.command(_tag(statement.classified))
    if any(piece.text and ALWAYS in piece.text for step in expansion.steps for piece in step.pieces):
        session.database.catalog.has_identities = True
    if expansion.cascades is not None:
        work.refuse_dependents()
    for step in _in_order(session, expansion):
        done = yield from work.step(step)
        result = done if len(expansion.steps) == 1 else result
    if expansion.on_commit is not None and expansion.table is not None:
        session.names.ends_with_transaction(expansion.table[-1], drops=expansion.on_commit == "DROP")
    return result


# Kinds of objects that a list of names in DROP ... IF EXISTS may miss.
_DROPPED = {"TABLE": TABLE, "VIEW": TABLE, "SEQUENCE": SEQUENCE, "TYPE": TYPE}


def _without_missing(session: Context, classified: Classified, expansion: Expansion) -> Expansion:
    """The expansion of a DROP ... IF EXISTS without the names of no object, which cost nothing."""
    facts = classified.ddl
    kind = _DROPPED.get(facts.object_type) if facts is not None and facts.verb == "DROP" else None
    if facts is None or kind is None or not facts.if_exists or len(expansion.names) != len(expansion.steps):
        return expansion
    find = session.names.resolver.find
    pairs = zip(expansion.names, expansion.steps, strict=True)
    found = [(name, step) for name, step in pairs if len(name) > 2 or find(kind, name) is not None]
    return replace(expansion, names=tuple(n for n, _ in found), steps=tuple(step for _, step in found))


def _refuse_streams(session: Context, classified: Classified) -> None:
    """Refuse DROP TABLE a, b CASCADE of a table with streams, which is a transaction of its own."""
    facts = classified.ddl
    if facts is None or facts.verb != "DROP" or facts.object_type != "TABLE" or not facts.cascade:
        return
    tables = session.block.tables
    found = next((tables[key] for key in map(session.names.table_key, facts.names) if key in tables), None)
    if found is not None and len(facts.names) > 1 and not found.may_go:
        raise NotSupported(
            f'DROP TABLE of several tables is not supported where one has streams: "{found.shape.name}"',
            hint="DROP TABLE it by itself.",
        )


def _in_order(session: Context, expansion: Expansion) -> Sequence[Step]:
    """The steps; of a list of tables, those that refer to others come before them."""
    if len(expansion.names) < 2:
        return expansion.steps
    rows = _references(session)
    left = dict(zip((fold(name[-1]) for name in expansion.names), expansion.steps, strict=False))
    if len(left) < len(expansion.steps):
        return expansion.steps  # Tables of one name in several schemas, or one table twice.
    refers = [(one, other) for one, other, _ in rows if one != other]
    ordered: list[Step] = []
    while left:
        free = (name for name in left if not any(other == name and one in left for one, other in refers))
        ordered.append(left.pop(next(free, next(iter(left)))))
    return ordered


def _references(session: Context) -> list[tuple[str, str, str]]:
    """The foreign keys: the table that refers, the one that is referred to, and their schema."""
    return session.names.cursor().execute(_REFERENCES).fetchall()


class _Work:
    """The statements of one expansion."""

    def __init__(
        self, session: Context, statement: ParsedStatement, parameters: Values, expansion: Expansion
    ) -> None:
        self._session = session
        self._statement = statement
        self._parameters = parameters
        self._expansion = expansion
        self._taken: set[tuple[str, str]] = set()

    def run(self, pieces: Sequence[Replacement], marks: Mapping[str, str] = {}) -> Waiting[Result]:
        """Run the user's text with replacements.

        Args:
            marks: the marks in them -> their texts.
        """
        made = [replace(piece, text=_filled(piece.text, marks)) for piece in pieces]
        with original_positions(made):
            return (yield from self._execute(cut(self._statement.text, made), self._parameters))

    def _execute(self, text: str, parameters: Values = ()) -> Waiting[Result]:
        inner = yield from self._session.parse(text, told=False)
        if inner.classified.kind is Kind.EXPANDED:
            # A step is in DuckDB's form, also where it has PostgreSQL's clauses.
            kind = Kind.DML if inner.classified.dml is not None else Kind.DDL
            session, classified = self._session, replace(inner.classified, kind=kind)
            inner = ParsedStatement(classified, None, (), session.describe, session.is_inline)
        types = self._statement.parameter_types_given if parameters else ()
        return (yield from self._session.execute_within(inner.declared(types), parameters))

    def drop_column(self, column: str | None) -> Waiting[Result]:
        """Drop a column that a statement before has added."""
        assert column is not None and self._expansion.table is not None
        table = ".".join(map(ident, self._expansion.table))
        return (yield from self._execute(f"ALTER TABLE {table} DROP COLUMN {ident(column)}"))

    def step(self, step: Step) -> Waiting[Result]:
        """Run a step with everything that belongs to it."""
        if step.owner is not None:
            self._check_owner(step.owner)
            return Result.command(_tag(self._statement.classified))
        if step.owner_to is not None:
            self._check_owner_to(step.owner_to)
            return Result.command(_tag(self._statement.classified))
        if step.restart is not None:
            yield from self._restart(step.restart)
            return Result.command(_tag(self._statement.classified))
        if step.foreign_key is not None and self._omits_foreign_key(step):
            return Result.command(_tag(self._statement.classified))
        if step.references or step.action is not None:
            step = self._with_foreign_keys(step)
        marks: dict[str, str] = {}
        if step.serials:
            place = self._place()
            if place is None:
                return Result.command(_tag(self._statement.classified))
            for serial in step.serials:
                name = self._sequence(place, serial)
                kind = "TEMP SEQUENCE" if place.temporary else "SEQUENCE"
                yield from self._execute(f"CREATE {kind} {name} {serial.options}")
                verb, made = self._statement.classified.verb, _parts(literal(name))[-1]
                self._session.notices.add(
                    f'{verb} will create implicit sequence "{made}" for serial column '
                    f'"{place.table}.{serial.column}"',
                    severity="DEBUG",
                )
                marks[serial.mark] = literal(name)
            result = yield from self.run(step.pieces, marks)
            return result
        if step.column is not None:
            sequence = self._own(step.column, if_exists=step.if_exists)
            if sequence is None:
                return Result.command(_tag(self._statement.classified))
            marks[Serial(step.column, "").mark] = sequence
        if step.constraint is not None:
            drop = self._constraint(step)
            if drop is None:
                return Result.command(_tag(self._statement.classified))
            return (yield from self._execute(drop))
        if self._expansion.index is not None:
            marks[INDEX_NAME] = ident(self._index_name(self._expansion.index))
        result = yield from self.run(step.pieces, marks)
        if step.restarts_all is not None:
            yield from self._restart_all(step.restarts_all)
        return result

    def refuse_dependents(self) -> None:
        """Refuse TRUNCATE ... CASCADE where other tables refer to the named ones.

        DuckDB empties a table only after the transaction that has emptied those that refer to it. A foreign
        key of DuckDB refers to a table of its own schema.
        """
        found = [self._session.names.resolver.find(TABLE, name) for name in self._expansion.names]
        named = {(fold(one.schema), fold(one.name)) for one in found if one is not None}
        for one, other, schema in _references(self._session):
            if (schema, other) in named and (schema, one) not in named:
                raise NotSupported(
                    "TRUNCATE ... CASCADE is not supported where other tables refer to the table",
                    hint="TRUNCATE the tables that refer to it first, in a transaction of their own.",
                    position=(self._expansion.cascades or 0) + 1,
                )

    def _found(self) -> Object | None:
        """The table that an ALTER TABLE changes; None if it is missing and may be."""
        facts, name = self._statement.classified.ddl, self._expansion.table
        assert facts is not None and name is not None
        found = self._session.names.resolver.find(TABLE, name)
        if found is None and not facts.if_exists:
            raise _undefined(name, facts.places[0])
        return found

    def _place(self) -> _TableSchema | None:
        facts, name = self._statement.classified.ddl, self._expansion.table
        assert facts is not None and name is not None
        if facts.verb == "ALTER":
            found = self._found()
            return None if found is None else _TableSchema(found.schema, found.name, found.temporary)
        if facts.temporary:
            return _TableSchema(DEFAULT_SCHEMA, name[-1], temporary=True)
        parts = self._session.names.without_catalog(name)
        schema = parts[0] if len(parts) == 2 else self._session.names.schema
        return _TableSchema(schema, name[-1], temporary=False)

    def _sequence(self, place: _TableSchema, serial: Serial) -> str:
        """The name of a new sequence, as SQL: `table_column_seq`, with a number if that is taken."""
        if serial.name is not None:
            parts = serial.name
            return ".".join(map(ident, parts)) if len(parts) > 1 else place.name(parts[0])
        names = self._session.names
        objects = names.temporary_objects() if place.temporary else names.objects()
        for name in numbered_names(f"{place.table}_{serial.column}_seq"):
            key = (fold(place.schema), fold(name))
            taken = key in self._taken or any(objects.get(kind, *key) for kind in (SEQUENCE, TABLE))
            if not taken:
                self._taken.add(key)
                return place.name(name)
        raise AssertionError("numbers have no end")

    def _index_name(self, columns: Sequence[str]) -> str:
        """PostgreSQL's name for an index: `table_column_idx`, with a number if that is taken."""
        assert self._expansion.table is not None
        first = "_".join([self._expansion.table[-1], *columns, "idx"])
        free = (name for name in numbered_names(first) if self._session.names.find(INDEX, (name,)) is None)
        return next(free)

    def _omits_foreign_key(self, step: Step) -> bool:
        """True if a step has nothing left without its foreign key, which this session leaves unenforced."""
        assert step.foreign_key is not None
        if self._session.variables[UNENFORCED] == "on":
            self._warn()
            return not step.adds_column
        if step.adds_column:
            raise NotSupported(
                "ADD COLUMN with REFERENCES is not supported",
                hint="ADD COLUMN without it, and ADD FOREIGN KEY in a transaction of its own.",
                position=step.foreign_key + 1,
            )
        return False

    def _with_foreign_keys(self, step: Step) -> Step:
        """A step with its foreign keys, or without them in a session that leaves them unenforced."""
        if step.references and self._session.variables[UNENFORCED] == "on":
            self._warn()
            spans = step.references
            pieces = (piece for piece in step.pieces if piece is not step.reference_names)
            kept = [piece for piece in pieces if not any(a <= piece.start < b for a, b in spans)]
            return replace(step, pieces=(*kept, *(Replacement(a, b, "") for a, b in spans)))
        if step.action is not None:
            place, words = step.action
            raise NotSupported(
                f"{words} of a foreign key is not supported",
                detail="DuckDB's foreign keys only refuse the change: the rows that refer have to go first.",
                hint=f"SET {UNENFORCED} = on accepts foreign keys that are not enforced.",
                position=place + 1,
            )
        return step

    def _warn(self) -> None:
        self._session.notices.add("foreign keys are not enforced", severity="WARNING", sqlstate="01000")

    def _constraint(self, step: Step) -> str | None:
        """The statement that drops a constraint or a unique index; None if it does not exist."""
        table, name = self._found(), step.constraint
        if table is None or name is None:
            return None
        found = self._session.names.find(INDEX, (table.schema, name))
        if found is not None and fold(found.definition) == fold(table.name):
            return f"DROP INDEX {ident(found.schema)}.{ident(found.name)}"
        if rebuild.constraint_of(self._session, table, name) is not None:
            if not rebuild.is_possible(self._session, table):
                raise NotSupported(
                    f'constraint "{name}" cannot be dropped',
                    detail="The table is temporary, or has triggers, or foreign keys refer to it.",
                    hint="A unique index can be dropped; NOT NULL is dropped by ALTER COLUMN.",
                )
            return f"ALTER TABLE {table.in_full} DROP CONSTRAINT {ident(name)}"
        omitted = self._session.variables[UNENFORCED] == "on" and (
            FOREIGN_KEY_NAME.search(name) is not None or not self._has_constraints(table)
        )
        if not omitted and not step.if_exists:
            raise UndefinedObject(f'constraint "{name}" of relation "{table.name}" does not exist')
        self._session.notices.add(f'constraint "{name}" of relation "{table.name}" does not exist, skipping')
        return None

    def _has_constraints(self, table: Object) -> bool:
        """True if a table has constraints whose names DuckDB may not have kept."""
        sql = (
            "SELECT 1 FROM system.main.duckdb_constraints() WHERE database_name = $1 AND schema_name = $2 "
            "AND table_name = $3 AND constraint_type IN ('CHECK', 'UNIQUE') LIMIT 1"
        )
        given = [table.catalog, table.schema, table.name]
        return ask_maybe(self._session.names.cursor(), sql, given) is not None

    # Sequences of columns.

    def _check_owner(self, name: Name) -> None:
        """Check the table in OWNED BY, where PostgreSQL names a column too, and the rights on it."""
        find = self._session.names.resolver.find
        table = find(TABLE, name) or (find(TABLE, name[:-1]) if len(name) > 1 else None)
        if table is None:
            raise UndefinedTable(f'relation "{".".join(name)}" does not exist')
        if table.schema == OURS:
            raise InsufficientPrivilege(f'schema "{OURS}" belongs to ducktail')
        sequence = self._statement.classified.ddl
        if sequence is not None and sequence.verb == "ALTER":
            if find(SEQUENCE, sequence.names[0]) is None:
                raise UndefinedObject(f'sequence "{sequence.names[0][-1]}" does not exist')
            self._session.judge(self._statement.classified)
        self._session.notices.add("OWNED BY has no effect: DROP SEQUENCE drops the sequence")

    def _check_owner_to(self, user: str) -> None:
        """Check that the user of OWNER TO is the present owner: an object belongs to its creator.

        To clients, an object without an owner belongs to the owner of the database.
        """
        session, classified = self._session, self._statement.classified
        facts = classified.ddl
        assert facts is not None
        item = self._item(facts)
        if item is None:
            return
        session.judge(classified)
        owner = session.access.rights.owners.get(item)
        mine = {*_SESSION_USERS, fold(session.user)}
        if not session.access.limited:
            mine.add(OURS)  # The catalog's name of the owner of the database.
        owns = session.access.owns(item)
        kept = user in mine if owner is None else user == owner or (user in mine and owns)
        if not kept:
            raise NotSupported(
                f"{classified.verb} ... OWNER TO another user is not supported",
                hint="An object belongs to its creator; pg_dump --no-owner omits the owners.",
            )

    def _item(self, facts: DdlFacts) -> Item | None:
        """The object that an ALTER names; None if it is missing and may be."""
        session, name = self._session, facts.names[0]
        if facts.object_type == "SCHEMA":
            if session.names.objects().has_schema(name[-1]):
                return schema_item(fold(name[-1]))
            raise InvalidSchemaName(f'schema "{name[-1]}" does not exist')
        # PostgreSQL takes ALTER TABLE of a view or a sequence too.
        kinds = {"TABLE": (TABLE, SEQUENCE), "VIEW": (TABLE,), "SEQUENCE": (SEQUENCE,), "TYPE": (TYPE,)}
        for kind in kinds.get(facts.object_type, ()):
            found = session.names.resolver.find(kind, name)
            if found is not None:
                return session.access.item_of(found.key)
        if facts.if_exists:
            return None
        raise UndefinedTable(f'"{".".join(name)}" does not exist', position=facts.places[0] + 1)

    def _own(self, column: str, *, if_exists: bool = False) -> str | None:
        """The sequence of an identity column, as a literal."""
        table = self._found()
        if table is None:
            return None
        found = {fold(name): one for name, one in self._own_of(table).items()}.get(fold(column))
        if found is None or found[0] == SERIAL:
            if if_exists:
                return None
            raise WrongState(f'column "{column}" of relation "{table.name}" is not an identity column')
        return found[1]

    def _own_of(self, table: Object) -> dict[str, tuple[str, str]]:
        cursor = self._session.cursor if table.temporary else self._session.names.cursor()
        return own_sequences(cursor, table)

    def _restart(self, asked: Restart) -> Waiting[None]:
        if asked.column is not None:
            sequence = self._own(asked.column)
        else:
            assert asked.sequence is not None
            sequence = literal(".".join(map(ident, asked.sequence)))
        if sequence is not None:
            yield from self._set(sequence, asked.value)

    def _restart_all(self, name: Name) -> Waiting[None]:
        found = self._session.names.resolver.find(TABLE, name)
        if found is not None:
            for _, sequence in self._own_of(found).values():
                yield from self._set(sequence, None)

    def _set(self, sequence: str, value: str | None) -> Waiting[None]:
        """Set the next value of a sequence; its start if there is no value."""
        yield from self._evaluate(f"SELECT setval({sequence}, {value or self._start(sequence)}, false)")

    def _start(self, sequence: str) -> int:
        """The start of a sequence; 1 for a missing one, which setval reports."""
        found = self._session.names.resolver.find(SEQUENCE, _parts(sequence))
        if found is None:
            return 1
        sql = (
            "SELECT start_value FROM system.main.duckdb_sequences() "
            "WHERE database_name = $1 AND schema_name = $2 AND sequence_name = $3"
        )
        cursor = self._session.cursor if found.temporary else self._session.names.cursor()
        return int(ask(cursor, sql, [found.catalog, found.schema, found.name])[0])

    def _evaluate(self, text: str) -> Waiting[None]:
        """Run a query for its effect, as a part of the running statement."""

        def run(session: Context, full: ParsedStatement, parameters: Values) -> Waiting[Result]:
            if session.block.begun:
                session.block.touched()
            try:
                ask(session.cursor, full.text)
            except duckdb.Error as error:
                raise translated(error) from error
            return Result.command("SELECT 1")
            yield

        inner = yield from self._session.parse(text, told=False)
        yield from self._session.execute_within(inner, (), run)


def numbered_names(first: str) -> Iterator[str]:
    """A name, and the same with numbers behind it, as PostgreSQL chooses them."""
    return chain([first], (f"{first}{number}" for number in count(1)))


def _filled(text: str, marks: Mapping[str, str]) -> str:
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


def _parts(sequence: str) -> Name:
    """The parts of a name in a literal."""
    tokens = tokenize(sequence[1:-1].replace("''", "'"))
    return tuple(token.name for token in tokens if token.kind != ".")
