"""Conversion of definitions from PostgreSQL's form into DuckDB's, before they run.

Three rules decide about each clause that DuckDB's grammar lacks. A clause that can be carried out is carried
out, if need be as several statements in one transaction: SERIAL and IDENTITY as a sequence and a default,
`DROP TABLE a, b` and `ALTER TABLE t ADD a ..., ADD b ...` as one statement for each. A clause that only tunes
PostgreSQL's storage is removed, and a NOTICE says so. A clause that would change the meaning is refused with
0A000 and the reason.

The edits are replacements of spans of the user's text, so that errors keep their positions. A name that only
the session can choose, such as that of a new sequence, is a mark in the replacing text until the statement
runs (`ddl/expanded.py`).

Source: docs/sql.md, "Definitions in PostgreSQL's form"; PostgreSQL documentation, "CREATE TABLE",
"ALTER TABLE", "CREATE INDEX", "CREATE SEQUENCE", "TRUNCATE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...engine.duck import constraint_names
from ...engine.duck.identities import ALWAYS, BY_DEFAULT, SERIAL, own_default
from ...engine.errors import InvalidParameterValue, NotSupported, ProgramLimitExceeded, SyntaxError_
from ...engine.quoting import blob_text, fold, ident, literal
from ...engine.values.temporal_input import in_duckdb_form
from ..text.classified import Classified, Kind, Name, TokenReader
from ..text.spans import Replacement
from ..text.tokens import NUMBER, QUOTED, STRING, Token, closing
from .classify_session import SET_CONSTRAINTS

# PostgreSQL's serial types -> the column's type.
SERIALS = {
    "smallserial": "SMALLINT", "serial2": "SMALLINT", "serial": "INTEGER", "serial4": "INTEGER",
    "bigserial": "BIGINT", "serial8": "BIGINT",
}  # fmt: skip
# Types of identity columns and of sequences -> the highest value of the type; None for DuckDB's own bound.
_BOUNDS = {
    "smallint": 2**15 - 1, "int2": 2**15 - 1, "integer": 2**31 - 1, "int": 2**31 - 1, "int4": 2**31 - 1,
    "bigint": None, "int8": None,
}  # fmt: skip
# PostgreSQL's names of types, also those of arrays, -> DuckDB's.
_ELEMENTS = {
    "bool": "BOOLEAN", "bytea": "BLOB", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT",
    "float4": "FLOAT", "float8": "DOUBLE", "numeric": "NUMERIC", "text": "VARCHAR", "varchar": "VARCHAR",
    "bpchar": "VARCHAR", "date": "DATE", "time": "TIME", "timetz": "TIMETZ", "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ", "interval": "INTERVAL", "uuid": "UUID", "json": "JSON", "jsonb": "JSON",
}  # fmt: skip
_TYPES = {"jsonb": "JSON", "varbit": "BIT"} | {f"_{name}": f"{type_}[]" for name, type_ in _ELEMENTS.items()}
# Types of time, which keep six digits of a second; DuckDB's TIMESTAMP(n) is a type of its own.
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIME", "TIMETZ", "INTERVAL"})
_MICROSECOND_DIGITS = 6

_CONSTRAINTS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "EXCLUDE", "LIKE"})
# Words that end the type of a column.
_AFTER_TYPE = frozenset(
    {"DEFAULT", "NOT", "NULL", "PRIMARY", "UNIQUE", "CHECK", "REFERENCES", "CONSTRAINT", "COLLATE"}
    | {"GENERATED", "DEFERRABLE", "INITIALLY", "STORAGE", "COMPRESSION", "USING", "AS"}
)
_ENDS_DEFAULT = _AFTER_TYPE - {"DEFAULT", "NOT", "NULL", "AS"}
# Storage parameters of PostgreSQL, and their prefixes.
_STORAGE = frozenset(
    {"fillfactor", "parallel_workers", "toast_tuple_target", "user_catalog_table", "vacuum_index_cleanup"}
    | {"vacuum_truncate", "oids", "deduplicate_items", "buffering", "fastupdate", "pages_per_range"}
    | {"gin_pending_list_limit", "autosummarize", "log_autovacuum_min_duration"}
)
_STORAGE_PREFIXES = ("autovacuum_", "toast.")

# Literals of bytes, as in sql/pipeline/placed_literals.py.
_BYTES = re.compile(r"\\x((?:[0-9A-Fa-f]{2}){2,})")
_ZONED = {"TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "TIMETZ": "TIME WITH TIME ZONE"}

UNLOGGED = "UNLOGGED has no effect: the log of one database file holds all of its tables"
_TUNES = "{} has no effect: it tunes PostgreSQL's storage"
_DEFERRED = "DEFERRABLE has no effect: a constraint is checked by each statement"

_COPIES = "DuckDB takes it in CREATE TABLE only: CREATE TABLE with the constraint, and copy the rows."

# The mark of an index's name that only the session can tell; those of sequences are in `Serial.mark`.
INDEX_NAME = "\0index\0"

Pieces = tuple[Replacement, ...]


@dataclass(frozen=True, slots=True)
class Serial:
    """A column with a sequence of its own.

    Args:
        column: the column's name, unquoted.
        options: the sequence's options in DuckDB's form.
        always: GENERATED ALWAYS AS IDENTITY.
        name: the name that the statement gives the sequence; None for `table_column_seq`.
    """

    column: str
    options: str
    always: bool = False
    name: Name | None = None

    @property
    def mark(self) -> str:
        """The place of the sequence's literal name in a replacement."""
        return f"\0{self.column}\0"


@dataclass(frozen=True, slots=True)
class Step:
    """One statement in place of the user's: the user's text with replacements.

    Args:
        serials: the columns whose sequences are created before it.
        column: the column whose own sequence the mark in the pieces names, or is dropped.
        constraint: the name of DROP CONSTRAINT, for which the pieces drop an index.
        if_exists: with `constraint` or `column`: a missing one is no error.
        restart: a sequence that restarts, in place of a statement.
        restarts_all: the sequences of this table's columns restart after the statement.
        apart: the constraint that it adds to a new column whose values DuckDB computes row by row: in a table
            with rows, DuckDB can add it only after the COMMIT of the column.
        added: with `apart`, the new column.
        foreign_key: the position of a foreign key that DuckDB cannot add to a table.
        adds_column: the foreign key belongs to a new column, from which it is removed.
        action: the place and the words of the first ON DELETE or ON UPDATE that DuckDB cannot carry out.
        references: the spans of CREATE TABLE's foreign keys, which can be left out, with the piece that has
            their names.
        reference_names: that piece.
        owner: the table or column in OWNED BY, which DuckDB does not carry out; there is no statement.
        owner_to: the user of OWNER TO, folded; there is no statement.
    """

    pieces: Pieces
    serials: tuple[Serial, ...] = ()
    column: str | None = None
    constraint: str | None = None
    if_exists: bool = False
    restart: Restart | None = None
    restarts_all: Name | None = None
    owner: Name | None = None
    owner_to: str | None = None
    apart: str | None = None
    added: str | None = None
    foreign_key: int | None = None
    adds_column: bool = False
    action: tuple[int, str] | None = None
    references: tuple[tuple[int, int], ...] = ()
    reference_names: Replacement | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """RESTART of a sequence, which is named or a column's own.

    Args:
        value: its next value; None for its start.
    """

    value: str | None
    sequence: Name | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Expansion:
    """A statement in PostgreSQL's form, as statements in DuckDB's, in one transaction.

    Args:
        steps: the statements, in order; none for a statement that does nothing here.
        notices: the clauses without effect.
        table: the table that the steps change.
        on_commit: DROP or DELETE ROWS: the fate of a temporary table at the end of its transaction.
        index: the columns of an index without a name.
        names: the names in a list, each of which has its step.
        unbuilt: the statement only tunes PostgreSQL's storage: the table is looked up, and nothing else done.
        cascades: the position of TRUNCATE's CASCADE, which requires that no other table refers to these.
    """

    steps: tuple[Step, ...]
    notices: tuple[str, ...] = ()
    table: Name | None = None
    on_commit: str | None = None
    index: tuple[str, ...] | None = None
    names: tuple[Name, ...] = ()
    unbuilt: bool = False
    cascades: int | None = None


@dataclass(slots=True)
class _Edits:
    """The edits of one statement, while it is read.

    Args:
        adds_column: the statement is ALTER TABLE, whose foreign keys are read by `_column_constraints`.
        keys: the CHECKs with names of keys, which follow the last element of CREATE TABLE.
    """

    text: str
    tokens: tuple[Token, ...]
    pieces: list[Replacement] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    serials: list[Serial] = field(default_factory=list)
    actions: list[tuple[int, str]] = field(default_factory=list)
    references: list[tuple[int, int]] = field(default_factory=list)
    adds_column: bool = False
    keys: list[str] = field(default_factory=list)
    foreign_keys: list[str] = field(default_factory=list)

    @property
    def action(self) -> tuple[int, str] | None:
        """The first action of a foreign key that DuckDB cannot carry out: its place and words."""
        return self.actions[0] if self.actions else None

    def put(self, first: int, end: int, text: str) -> None:
        """Replace the tokens [first, end)."""
        start, last = self.tokens[first].start, self.tokens[end - 1].end
        self.pieces.append(Replacement(start, last, text))

    def insert(self, behind: int, text: str) -> None:
        """Insert a text behind a token."""
        end = self.tokens[behind].end
        self.pieces.append(Replacement(end, end, text))

    def remove(self, first: int, end: int, notice: str | None = None) -> None:
        """Remove the tokens [first, end)."""
        self.put(first, end, "")
        if notice is not None:
            self.note(notice)

    def note(self, notice: str) -> None:
        """Tell the client, once for each notice."""
        if notice not in self.notices:
            self.notices.append(notice)

    def tunes(self, first: int, end: int, what: str) -> None:
        """Remove a clause that tunes PostgreSQL's storage."""
        self.remove(first, end, _TUNES.format(what))

    def kind(self, at: int) -> str:
        """The kind of a token; "" past the end."""
        return self.tokens[at].kind if at < len(self.tokens) else ""

    def are(self, at: int, *kinds: str) -> bool:
        """True if these tokens follow from a place on."""
        return all(self.kind(at + ahead) == kind for ahead, kind in enumerate(kinds))

    def behind(self, opening: int) -> int:
        """The place behind the brackets that open here."""
        return closing(self.tokens, opening) + 1

    def refuse(self, at: int, message: str, hint: str | None = None) -> NotSupported:
        """The error for a clause that begins at a token."""
        return NotSupported(message, hint=hint, position=self.tokens[at].start + 1)

    def slices(self, first: int, end: int) -> list[tuple[int, int]]:
        """The tokens [first, end), divided at the commas of their own depth."""
        return TokenReader(self.text, self.tokens).slices(first, end)


# Each sequence takes a statement, and several looks at the catalog.
SERIALS_MAX = 32
# Verbs of other kinds that `expand` takes.
EXPANDING = frozenset({"TRUNCATE", SET_CONSTRAINTS})


def expand(classified: Classified) -> Expansion | None:
    """The statements that a definition or a TRUNCATE becomes; None if it runs as it is.

    Raises:
        NotSupported: a clause would change the meaning.
        ProgramLimitExceeded: the definition has too many serial columns.
        SyntaxError_, InvalidParameterValue: the statement is invalid in PostgreSQL too.
    """
    if classified.kind is Kind.DDL:
        assert classified.ddl is not None
        rule = _RULES.get((classified.ddl.verb, classified.ddl.object_type))
        if classified.ddl.verb == "ALTER" and [t.kind for t in classified.tokens[-3:-1]] == ["OWNER", "TO"]:
            return Expansion((Step((), owner_to=fold(classified.tokens[-1].name)),))
        if rule is None and classified.ddl.verb == "DROP":
            rule = _drop
    else:
        rule = {"TRUNCATE": _truncate, SET_CONSTRAINTS: _set_constraints}.get(classified.verb)
    if rule is None:
        return None
    found = rule(classified, _Edits(classified.text, classified.tokens))
    if any(len(step.serials) > SERIALS_MAX for step in found.steps):
        raise ProgramLimitExceeded(f"a statement creates at most {SERIALS_MAX} columns with a sequence each")
    return None if found == Expansion((Step(()),), table=found.table) else found


def _one(classified: Classified, edits: _Edits) -> Expansion:
    """A single statement with the edits."""
    assert classified.ddl is not None
    step = Step(
        tuple(edits.pieces), tuple(edits.serials), action=edits.action, references=tuple(edits.references)
    )
    return Expansion((step,), tuple(edits.notices), classified.ddl.table)


# Lists of names.


def _each(
    edits: _Edits, spans: Sequence[tuple[int, int]], behind: Sequence[tuple[int, int]] = ()
) -> list[Step]:
    """One statement for each of several spans of tokens, with the other spans removed.

    Args:
        behind: spans that are removed from every statement.
    """
    steps, first, end = [], spans[0][0], spans[-1][1]
    for a, b in spans:
        pieces = list(edits.pieces)
        if a > first:
            pieces.append(Replacement(edits.tokens[first].start, edits.tokens[a].start, ""))
        if b < end:
            pieces.append(Replacement(edits.tokens[b - 1].end, edits.tokens[end - 1].end, ""))
        pieces += (Replacement(edits.tokens[c].start, edits.tokens[d - 1].end, "") for c, d in behind)
        steps.append(Step(tuple(pieces)))
    return steps


def _drop(classified: Classified, edits: _Edits) -> Expansion:
    """DROP ... a, b; DROP INDEX CONCURRENTLY."""
    facts = classified.ddl
    assert facts is not None
    at = {token.start: index for index, token in enumerate(edits.tokens)}
    first = at[facts.places[0]]
    for index in range(1, first):
        if edits.kind(index) == "CONCURRENTLY":
            edits.remove(index, index + 1, "CONCURRENTLY has no effect: an index is dropped at once")
    if len(facts.names) == 1:
        return _one(classified, edits)
    spans = [
        (at[place], at[place] + 2 * len(name) - 1)
        for name, place in zip(facts.names, facts.places, strict=True)
    ]
    steps = tuple(_each(edits, spans))
    return Expansion(steps, tuple(edits.notices), names=facts.names if facts.object_type == "TABLE" else ())


def _truncate(classified: Classified, edits: _Edits) -> Expansion:
    """TRUNCATE [TABLE] [ONLY] a [*], b [RESTART IDENTITY | CONTINUE IDENTITY] [CASCADE | RESTRICT]"""
    at = 2 if edits.kind(1) == "TABLE" else 1
    spans: list[tuple[int, int]] = []
    while True:
        if edits.kind(at) == "ONLY" and at + 1 < len(edits.tokens) and edits.tokens[at + 1].is_name:
            edits.remove(at, at + 1)
            at += 1
        reader = TokenReader(edits.text, edits.tokens, at)
        reader.qualified()
        spans.append((at, reader.index))
        at = reader.index
        if edits.kind(at) == "*":
            edits.remove(at, at + 1)
            at += 1
        if edits.kind(at) != ",":
            break
        at += 1
    restarts = edits.are(at, "RESTART", "IDENTITY")
    if restarts or edits.are(at, "CONTINUE", "IDENTITY"):
        edits.remove(at, at + 2)
        at += 2
    cascades = edits.tokens[at].start if edits.kind(at) == "CASCADE" else None
    if edits.kind(at) in ("CASCADE", "RESTRICT"):
        edits.remove(at, at + 1)
        at += 1
    if at < len(edits.tokens):
        raise TokenReader(edits.text, edits.tokens, at).unexpected()
    if len(spans) == 1 and not restarts and cascades is None:
        return Expansion((Step(tuple(edits.pieces)),))
    steps = _each(edits, spans)
    names = tuple(TokenReader(edits.text, edits.tokens, a).qualified() for a, _ in spans)
    if restarts:
        steps = [replace(step, restarts_all=name) for step, name in zip(steps, names, strict=True)]
    return Expansion(tuple(steps), names=names, cascades=cascades)


def _set_constraints(classified: Classified, edits: _Edits) -> Expansion:
    """SET CONSTRAINTS { ALL | name, ... } { DEFERRED | IMMEDIATE }"""
    last = edits.kind(len(edits.tokens) - 1)
    if last not in ("DEFERRED", "IMMEDIATE") or len(edits.tokens) < 4:
        raise TokenReader(edits.text, edits.tokens, len(edits.tokens)).unexpected()
    return Expansion((), () if last == "IMMEDIATE" else (_DEFERRED,))


# CREATE TABLE.


def _create_table(classified: Classified, edits: _Edits) -> Expansion:
    facts = classified.ddl
    assert facts is not None and facts.table is not None
    at = _head(edits, facts.places[0])
    at += 2 * len(facts.table) - 1
    names: Replacement | None = None
    listed = edits.kind(at) == "("
    if listed:
        end = closing(edits.tokens, at)
        if not facts.as_select:
            _elements(edits, at + 1, end)
            if edits.keys:
                edits.insert(end - 1, ", " + ", ".join(edits.keys))
            if edits.foreign_keys:
                edits.insert(end - 1, ", " + ", ".join(edits.foreign_keys))
                names = edits.pieces[-1]
        at = end + 1
    if edits.kind(at) == "OF":
        raise edits.refuse(at, "tables of a type are not supported")
    on_commit = _table_tail(edits, at, temporary=facts.temporary)
    found = replace(_one(classified, edits), on_commit=on_commit)
    return replace(found, steps=(replace(found.steps[0], reference_names=names),))


def _head(edits: _Edits, place: int) -> int:
    """Read the words before the name of a new object: UNLOGGED, LOCAL and GLOBAL; return the name's index."""
    at = 1
    while edits.tokens[at].start < place:
        if edits.kind(at) == "UNLOGGED":
            edits.remove(at, at + 1, UNLOGGED)
        elif edits.kind(at) in ("LOCAL", "GLOBAL"):
            edits.remove(at, at + 1)  # They have no effect in PostgreSQL either.
        at += 1
    return at


def _table_tail(edits: _Edits, at: int, *, temporary: bool) -> str | None:
    """Read the clauses behind the columns, up to AS; return DROP or DELETE ROWS of ON COMMIT."""
    on_commit: str | None = None
    while at < len(edits.tokens) and edits.kind(at) != "AS":
        kind = edits.kind(at)
        if kind == "WITH" and edits.kind(at + 1) == "(":
            end = edits.behind(at + 1)
            _storage(edits, at, end)
        elif edits.are(at, "WITHOUT", "OIDS"):
            end = at + 2
            edits.remove(at, end)
        elif kind == "TABLESPACE":
            end = at + 2
            edits.tunes(at, end, "TABLESPACE")
        elif kind == "USING":
            end = at + 2
            edits.tunes(at, end, "USING")
        elif edits.are(at, "ON", "COMMIT"):
            end = at + 4 if edits.kind(at + 3) == "ROWS" else at + 3
            if not temporary:
                raise edits.refuse(at, "ON COMMIT can only be used on temporary tables")
            if edits.kind(at + 2) in ("DROP", "DELETE"):
                on_commit = edits.kind(at + 2)
                edits.remove(at, end)
        elif kind in ("INHERITS", "PARTITION"):
            raise edits.refuse(at, f"{kind} is not supported", "A table has neither children nor partitions.")
        else:
            break
        at = end
    return on_commit


def _storage(edits: _Edits, at: int, end: int) -> None:
    """Remove WITH (...) if all of its parameters are PostgreSQL's storage parameters."""
    names = []
    for a, b in edits.slices(at + 2, end - 1):
        at_value = next((i for i in range(a, b) if edits.kind(i) == "="), b)
        name = fold("".join(token.name for token in edits.tokens[a:at_value]))
        if name not in _STORAGE and not name.startswith(_STORAGE_PREFIXES):
            return  # DuckDB reports it.
        if name == "oids" and fold(edits.tokens[b - 1].value) not in ("false", "off", "0"):
            raise edits.refuse(a, "tables with OIDs are not supported")
        names.append(name)
    edits.tunes(at, end, f"WITH ({', '.join(names)})")


def _elements(edits: _Edits, first: int, end: int) -> None:
    """Read the columns and constraints of CREATE TABLE, and note its foreign keys."""
    tokens, kept = edits.tokens, False
    for a, b in edits.slices(first, end):
        _element(edits, a, b)
        kind = edits.kind(a + 2) if edits.kind(a) == "CONSTRAINT" else edits.kind(a)
        if kind == "FOREIGN":
            at = next((i for i in range(a, b) if edits.kind(i) == "REFERENCES"), b)
            last = _behind_reference(edits, at, b) if at < b else b
            if last < b:
                raise TokenReader(edits.text, edits.tokens, last).unexpected()
        if kind != "FOREIGN":
            kept = True
        elif kept:  # With the comma in front of it, or behind it where nothing is left in front.
            edits.references.append((tokens[a - 1].start, tokens[b - 1].end))
        elif b < end:
            edits.references.append((tokens[a].start, tokens[b].end))


def _element(edits: _Edits, a: int, b: int) -> None:
    """Read one element of a list of columns: a column or a constraint."""
    kind, follows = edits.kind(a), edits.kind(a + 1)
    if kind not in _CONSTRAINTS or (kind == "EXCLUDE" and follows not in ("USING", "(")):
        _column(edits, a, b)
        return
    if kind == "LIKE":
        raise edits.refuse(
            a, "LIKE is not supported", "CREATE TABLE t AS FROM other LIMIT 0 takes its columns."
        )
    _constraints(edits, a, b)


def _column(edits: _Edits, a: int, b: int) -> int:
    """Read a column with its constraints; return the place behind its type."""
    name, first = edits.tokens[a].name, a + 1
    depth = edits.tokens[a].depth
    ends = (i for i in range(first, b) if edits.tokens[i].depth == depth and edits.kind(i) in _AFTER_TYPE)
    end = next(ends, b)
    _column_type(edits, name, first, end, b)
    _constraints(edits, end, b, column=(name, first, end))
    return end


def _column_type(edits: _Edits, name: str, first: int, end: int, b: int) -> None:
    """Read the type of a column, which may be a serial."""
    if first >= end:
        return
    last = end - 1
    word = edits.tokens[last]
    serial = SERIALS.get(fold(word.text)) if word.is_word else None
    qualified = last - first == 2 and edits.kind(first) == "PG_CATALOG" and edits.kind(first + 1) == "."
    if serial is None or not (last == first or qualified):
        types(edits, first, end)
        return
    if any(edits.kind(i) == "DEFAULT" and edits.tokens[i].depth == word.depth for i in range(end, b)):
        raise SyntaxError_(f'multiple default values specified for column "{name}"', position=word.start + 1)
    made = Serial(name, _options_text(_bound_of(fold(serial)), {}))
    edits.serials.append(made)
    nullable = "" if _is_not_null(edits, end, b) else " NOT NULL"
    edits.put(first, end, f"{serial} DEFAULT {own_default(made.mark, SERIAL)}{nullable}")


def _is_not_null(edits: _Edits, first: int, end: int) -> bool:
    return any(edits.are(i, "NOT", "NULL") or edits.are(i, "PRIMARY", "KEY") for i in range(first, end - 1))


def types(edits: _Edits, first: int, end: int) -> None:
    """Replace PostgreSQL's names of types in a span of tokens."""
    for at in range(first, end):
        token = edits.tokens[at]
        if not token.is_name or edits.kind(at + 1) in (".",):
            continue
        found = _TYPES.get(token.name if token.kind == QUOTED else fold(token.text))
        if edits.kind(at - 1) == ".":
            if edits.kind(at - 2) != "PG_CATALOG":
                continue
            found = found or _ELEMENTS.get(fold(token.text))
            if found is not None:
                edits.put(at - 2, at + 1, found)
        elif found is not None and at == first:
            edits.put(at, at + 1, found)
        if token.kind in _TIMES and edits.are(at + 1, "(", NUMBER, ")"):
            _digits(edits, at)


def _digits(edits: _Edits, at: int) -> None:
    """Remove the digits of a second from a type of time; DuckDB's TIMESTAMP(n) keeps them."""
    digits = edits.tokens[at + 2].text
    if edits.kind(at) == "TIMESTAMP" and not edits.are(at + 4, "WITH", "TIME", "ZONE"):
        return
    if not digits.isdecimal() or int(digits) < _MICROSECOND_DIGITS:
        raise edits.refuse(
            at,
            f"{edits.tokens[at].text}({digits}) is not supported as the type of a column",
            "Its values have six digits of a second. Round the values by a cast.",
        )
    edits.remove(at + 1, at + 4)


def _constraints(edits: _Edits, at: int, end: int, column: tuple[str, int, int] | None = None) -> None:
    """Read the constraints of a column, or one of the table.

    Args:
        column: the column's name, and the span of its type.
    """
    depth = edits.tokens[at].depth if at < end else 0
    while at < end:
        kind = edits.kind(at)
        if edits.tokens[at].depth > depth:
            at += 1
        elif kind == "GENERATED":
            at = _generated(edits, at, end, column)
        elif kind == "CONSTRAINT" and at + 2 < end:
            at = _named(edits, at, column and column[0])
        elif kind == "DEFAULT":
            _typed_default(edits, at + 1, column)
            at = _default(edits, at + 1, end, depth)
        elif kind == "REFERENCES" and column is not None:
            last = _behind_reference(edits, at, end)
            if not edits.adds_column:
                first = at - 2 if edits.kind(at - 2) == "CONSTRAINT" else at
                edits.references.append((edits.tokens[first].start, edits.tokens[last - 1].end))
                _constraints(edits, at + 1, last)
            at = last
        else:
            rule = next((rule for words, rule in _CLAUSES if edits.are(at, *words)), None)
            at = at + 1 if rule is None else rule(edits, at, end)


def _typed_default(edits: _Edits, at: int, column: tuple[str, int, int] | None) -> None:
    """Write a literal of bytes, of a date or of a time in DuckDB's form.

    Args:
        column: the column's name, and the span of its type; None if only the catalog has the type.
    """
    token = edits.tokens[at] if at < len(edits.tokens) else None
    if token is None or token.kind != STRING or edits.kind(at + 1) == "::":
        return
    if (found := _BYTES.fullmatch(token.value)) is not None:
        if column is None:
            hint = f"Write its type: {token.text}::bytea."
            raise edits.refuse(at, "a default in hexadecimal digits without its type is not supported", hint)
        if edits.kind(column[1]) == "BYTEA" and column[2] == column[1] + 1:
            edits.put(at, at + 1, f"'{blob_text(bytes.fromhex(found[1]))}'")
    elif column is not None:
        type_ = _ZONED.get(edits.kind(column[1]), edits.kind(column[1]))
        if column[2] - column[1] > 3 and edits.are(column[2] - 3, "WITH", "TIME", "ZONE"):
            type_ += " WITH TIME ZONE"
        if (written := in_duckdb_form(token.value, type_)) is not None:
            edits.put(at, at + 1, literal(written))


def _default(edits: _Edits, first: int, end: int, depth: int) -> int:
    """Read the expression of a DEFAULT; return the place behind it."""
    last = _default_end(edits, first, end, depth)
    for at in range(first, last):
        if edits.are(at, "JSONB") and edits.kind(at - 1) in ("::", "AS"):
            edits.put(at, at + 1, "JSON")
        if edits.are(at, "::", "REGCLASS") and edits.kind(at - 1) == STRING:
            edits.remove(at, at + 2)  # nextval('s'::regclass)
        if edits.are(at, "STATEMENT_TIMESTAMP", "(", ")"):
            edits.put(at, at + 1, "now")
            edits.note(_TRANSACTION_TIME)
    return last


_TRANSACTION_TIME = "statement_timestamp() in a DEFAULT is now(), the time of the transaction"


def _default_end(edits: _Edits, at: int, end: int, depth: int) -> int:
    """The place behind the expression of a DEFAULT."""
    while at < end and not (edits.tokens[at].depth == depth and edits.kind(at) in _ENDS_DEFAULT):
        if edits.are(at, "NOT", "NULL") and edits.tokens[at].depth == depth:
            break
        at += 1
    return at


def _not_deferrable(edits: _Edits, at: int, end: int) -> int:
    edits.remove(at, at + 2)
    return at + 2


def _deferrable(edits: _Edits, at: int, end: int) -> int:
    edits.remove(at, at + 1, _DEFERRED)
    return at + 1


def _initially(edits: _Edits, at: int, end: int) -> int:
    edits.remove(at, at + 2, _DEFERRED if edits.kind(at + 1) == "DEFERRED" else None)
    return at + 2


def _match(edits: _Edits, at: int, end: int) -> int:
    if edits.kind(at + 1) != "SIMPLE":
        raise edits.refuse(at, f"MATCH {edits.kind(at + 1)} is not supported", "MATCH SIMPLE is the rule.")
    edits.remove(at, at + 2)
    return at + 2


def _restricts(edits: _Edits, at: int, end: int) -> int:
    """ON DELETE and ON UPDATE of a foreign key."""
    if edits.kind(at + 2) in ("CASCADE", "SET"):
        words = " ".join(edits.kind(i) for i in range(at, at + (3 if edits.kind(at + 2) == "CASCADE" else 4)))
        edits.actions.append((edits.tokens[at].start, words))
    return at + 3


def _using_index(edits: _Edits, at: int, end: int) -> int:
    if edits.kind(at + 2) != "TABLESPACE":
        raise edits.refuse(at, "a constraint of an existing index is not supported")
    edits.tunes(at, at + 4, "USING INDEX TABLESPACE")
    return at + 4


def _include(edits: _Edits, at: int, end: int) -> int:
    last = edits.behind(at + 1)
    edits.tunes(at, last, "INCLUDE")
    return last


def _parameters(edits: _Edits, at: int, end: int) -> int:
    last = edits.behind(at + 1)
    _storage(edits, at, last)
    return last


def _no_inherit(edits: _Edits, at: int, end: int) -> int:
    edits.remove(at, at + 2)
    return at + 2


def _nulls(edits: _Edits, at: int, end: int) -> int:
    if edits.kind(at + 1) == "NOT":
        raise edits.refuse(at, "NULLS NOT DISTINCT is not supported", "NULLs are distinct in DuckDB's keys.")
    edits.remove(at, at + 2)
    return at + 2


def _collate(edits: _Edits, at: int, end: int) -> int:
    """COLLATE "default", which is the order of the bytes."""
    last = at + 2
    while edits.kind(last) == ".":
        last += 2
    if edits.tokens[last - 1].kind == QUOTED and edits.tokens[last - 1].name == "default":
        edits.remove(at, last)
    return last


def _tuning_word(edits: _Edits, at: int, end: int) -> int:
    edits.tunes(at, at + 2, edits.kind(at))
    return at + 2


def _excludes(edits: _Edits, at: int, end: int) -> int:
    raise edits.refuse(at, "EXCLUDE is not supported")


def _named(edits: _Edits, at: int, column: str | None) -> int:
    """CONSTRAINT name ...: the name becomes a part of a CHECK; return the place of the constraint."""
    name, kind = edits.tokens[at + 1], edits.kind(at + 2)
    if not name.is_name:
        return at + 2
    if edits.are(at + 2, "CHECK", "("):
        last = closing(edits.tokens, at + 3)
        edits.insert(at + 3, constraint_names.opening(name.name))
        edits.insert(last - 1, constraint_names.CLOSING)
        return last + 1
    key = _KEYS.get(kind)
    listed = at + (3 if kind == "UNIQUE" else 4)
    columns = [] if column is None else [column]
    if key and edits.kind(listed) == "(" and column is None:
        slices = edits.slices(listed + 1, closing(edits.tokens, listed))
        columns = [edits.tokens[a].name for a, b in slices if b == a + 1 and edits.tokens[a].is_name]
        if len(columns) < len(slices):
            return at + 2
    if key and columns and not edits.adds_column:
        keys = edits.foreign_keys if key == constraint_names.FOREIGN_KEY else edits.keys
        keys.append(constraint_names.key_check(key, name.name, columns))
    return at + 2


_KEYS = {
    "PRIMARY": constraint_names.PRIMARY_KEY, "UNIQUE": constraint_names.UNIQUE,
    "FOREIGN": constraint_names.FOREIGN_KEY, "REFERENCES": constraint_names.FOREIGN_KEY,
}  # fmt: skip

_CLAUSES: tuple[tuple[tuple[str, ...], Callable[[_Edits, int, int], int]], ...] = (
    (("NOT", "DEFERRABLE"), _not_deferrable),
    (("DEFERRABLE",), _deferrable),
    (("INITIALLY",), _initially),
    (("MATCH",), _match),
    (("ON", "DELETE"), _restricts),
    (("ON", "UPDATE"), _restricts),
    (("USING", "INDEX"), _using_index),
    (("INCLUDE", "("), _include),
    (("WITH", "("), _parameters),
    (("NO", "INHERIT"), _no_inherit),
    (("NULLS",), _nulls),
    (("COLLATE",), _collate),
    (("STORAGE",), _tuning_word),
    (("COMPRESSION",), _tuning_word),
    (("EXCLUDE", "USING"), _excludes),
    (("EXCLUDE", "("), _excludes),
)


# GENERATED.


def _generated(edits: _Edits, at: int, end: int, column: tuple[str, int, int] | None) -> int:
    """GENERATED { ALWAYS | BY DEFAULT } AS IDENTITY [(options)]; GENERATED ALWAYS AS (expression) STORED"""
    always = edits.kind(at + 1) == "ALWAYS"
    behind = at + 2 if always else at + 3
    if not edits.are(behind, "AS", "IDENTITY") or column is None:
        return _computed(edits, behind + 1, end)
    name, first, last = column
    type_ = fold("".join(token.text for token in edits.tokens[first:last])).removeprefix("pg_catalog.")
    if type_ not in _BOUNDS:
        raise InvalidParameterValue(
            "identity column type must be smallint, integer, or bigint", position=edits.tokens[at].start + 1
        )
    behind += 2
    options: dict[str, str] = {}
    given: Name | None = None
    if edits.kind(behind) == "(":
        inside = behind + 1
        behind = edits.behind(behind)
        options, given, _ = sequence_options(edits, inside, behind - 1)
    made = Serial(name, _options_text(_bound_of(type_), options), always, given)
    edits.serials.append(made)
    nullable = "" if _is_not_null(edits, last, end) else " NOT NULL"
    edits.put(at, behind, f"DEFAULT {own_default(made.mark, ALWAYS if always else BY_DEFAULT)}{nullable}")
    return behind


def _computed(edits: _Edits, at: int, end: int) -> int:
    """The expression of a generated column, which DuckDB computes when it is read."""
    if edits.kind(at) != "(":
        return at
    behind = edits.behind(at)
    if behind < end and edits.kind(behind) == "STORED":
        notice = "STORED has no effect: a generated column is computed when it is read"
        edits.put(behind, behind + 1, "VIRTUAL")
        edits.note(notice)
        return behind + 1
    return behind


# Sequences.


def _bound_of(type_: str) -> int | None:
    return _BOUNDS[type_]


def _options_text(bound: int | None, options: dict[str, str]) -> str:
    """The options of a sequence in DuckDB's form, bounded by its type."""
    found = dict(options)
    if bound is not None and found.get("INCREMENT", "").startswith("-"):
        found.setdefault("MINVALUE", str(-bound - 1))
    elif bound is not None:
        found.setdefault("MAXVALUE", str(bound))
    return " ".join(f"{name} {value}".strip() for name, value in found.items())


def _signed(edits: _Edits, at: int) -> tuple[str, int]:
    """The number that begins at a token, and the place behind it."""
    sign = edits.kind(at) if edits.kind(at) in ("-", "+") else ""
    at += bool(sign)
    if edits.kind(at) != NUMBER:
        raise TokenReader(edits.text, edits.tokens, at).unexpected()
    return f"{sign}{edits.tokens[at].text}".removeprefix("+"), at + 1


def sequence_options(edits: _Edits, at: int, end: int) -> tuple[dict[str, str], Name | None, Name | None]:
    """Read the options of a sequence.

    Returns:
        The options by DuckDB's words; the name of SEQUENCE NAME; the name in OWNED BY.
    """
    options: dict[str, str] = {}
    name: Name | None = None
    owned: Name | None = None
    while at < end:
        kind = edits.kind(at)
        if kind in ("START", "INCREMENT", "MINVALUE", "MAXVALUE", "CACHE"):
            at += 2 if edits.kind(at + 1) in ("WITH", "BY") else 1
            value, at = _signed(edits, at)
            if kind != "CACHE":
                options[kind] = value
            elif value != "1":
                edits.note(_TUNES.format("CACHE"))
        elif kind == "NO" and edits.kind(at + 1) in ("MINVALUE", "MAXVALUE", "CYCLE"):
            at += 2
        elif kind == "CYCLE":
            options["CYCLE"] = ""
            at += 1
        elif kind in ("LOGGED", "UNLOGGED"):
            edits.note(UNLOGGED)
            at += 1
        elif kind == "AS":
            bound = _BOUNDS.get(fold(edits.tokens[at + 1].text)) if at + 1 < end else None
            if bound is not None:
                options.setdefault("AS", str(bound))
            at += 2
        elif edits.are(at, "SEQUENCE", "NAME") or edits.are(at, "OWNED", "BY"):
            reader = TokenReader(edits.text, edits.tokens, at + 2)
            parts = reader.qualified()
            if kind == "SEQUENCE":
                name = parts
            elif not (len(parts) == 1 and fold(parts[0]) == "none"):
                owned = parts
            at = reader.index
        else:
            raise TokenReader(edits.text, edits.tokens, at).unexpected()
    return options, name, owned


def _create_sequence(classified: Classified, edits: _Edits) -> Expansion:
    facts = classified.ddl
    assert facts is not None
    at = _head(edits, facts.places[0]) + 2 * len(facts.names[0]) - 1
    asks = {"AS", "CACHE", "OWNED", "LOGGED", "UNLOGGED"}
    if not any(token.kind in asks for token in edits.tokens[at:]):
        return _one(classified, edits)
    options, _, owned = sequence_options(edits, at, len(edits.tokens))
    bound = options.pop("AS", None)
    edits.put(at, len(edits.tokens), _options_text(None if bound is None else int(bound), options))
    steps = [Step(tuple(edits.pieces))]
    if owned is not None:
        steps.append(Step((), owner=owned))
    return Expansion(tuple(steps), tuple(edits.notices))


def _alter_sequence(classified: Classified, edits: _Edits) -> Expansion:
    """ALTER SEQUENCE s { OWNED BY t.c | RESTART [WITH n] }"""
    facts = classified.ddl
    assert facts is not None
    at = next(i for i, token in enumerate(edits.tokens) if token.start == facts.places[0])
    at += 2 * len(facts.names[0]) - 1
    if edits.are(at, "OWNED", "BY") and edits.kind(at + 2) != "NONE":
        parts = TokenReader(edits.text, edits.tokens, at + 2).qualified()
        return Expansion((Step((), owner=parts),))
    elif edits.kind(at) == "RESTART":
        restart = Restart(_restart(edits, at, len(edits.tokens)), sequence=facts.names[0])
        return Expansion((Step((), restart=restart),))
    return Expansion((Step(tuple(edits.pieces)),))


def _restart(edits: _Edits, at: int, end: int) -> str | None:
    """The number of RESTART [[WITH] n]; None without one."""
    at += 2 if edits.kind(at + 1) == "WITH" else 1
    if at >= end:
        return None
    value, at = _signed(edits, at)
    if at < end:
        raise TokenReader(edits.text, edits.tokens, at).unexpected()
    return value


# CREATE TYPE.


def _create_type(classified: Classified, edits: _Edits) -> Expansion:
    """CREATE TYPE name AS (attribute type, ...): a struct."""
    place = next((at for at in range(2, len(edits.tokens)) if edits.kind(at) == "AS"), None)
    if place is not None and edits.are(place, "AS", "("):
        end = edits.behind(place + 1) - 1
        if end == place + 2:
            raise edits.refuse(end, "a type without attributes is not supported")
        edits.insert(place, " STRUCT")
        for a, b in edits.slices(place + 2, end):
            last = next((at for at in range(a + 1, b) if edits.kind(at) == "COLLATE"), b)
            types(edits, a + 1, last)
            if last < b:
                _collate(edits, last, b)
    return _one(classified, edits)


# CREATE INDEX.


# Methods of PostgreSQL's indexes that make queries faster and change none.
_UNBUILT = frozenset({"GIN", "GIST", "SPGIST", "BRIN"})


def _create_index(classified: Classified, edits: _Edits) -> Expansion:
    """CREATE INDEX [CONCURRENTLY] [name] ON [ONLY] t [USING method] (...) [INCLUDE (...)] [WITH (...)] ..."""
    facts = classified.ddl
    assert facts is not None and facts.table is not None and facts.table_place is not None
    unique = False
    at = 0
    while edits.tokens[at].start < facts.table_place:
        if edits.kind(at) == "CONCURRENTLY" and edits.kind(at - 1) == "INDEX":
            edits.remove(at, at + 1, "CONCURRENTLY has no effect: the index is built in this statement")
        elif edits.kind(at) == "ONLY" and edits.kind(at - 1) == "ON":
            edits.remove(at, at + 1)
        unique = unique or edits.kind(at) == "UNIQUE"
        at += 1
    on = next(i for i in range(at - 1, 0, -1) if edits.kind(i) == "ON")
    at += 2 * len(facts.table) - 1
    if edits.kind(at) == "USING":
        method = edits.kind(at + 1)
        if method in _UNBUILT and not unique:
            notice = f"an index of method {fold(method)} is not built: DuckDB has one for equality and ranges"
            return Expansion((), (notice,), facts.table, unbuilt=True)
        if method not in ("BTREE", "HASH", "ART"):
            raise edits.refuse(
                at,
                f"an index of method {fold(method)} is not supported",
                "DuckDB's indexes serve equality and ranges.",
            )
        if method != "ART":
            edits.remove(at, at + 2)
        if method == "HASH":
            edits.note("USING hash has no effect: DuckDB has one kind of index")
        at += 2
    columns: list[str] = []
    if edits.kind(at) == "(":
        end = edits.behind(at)
        for a, b in edits.slices(at + 1, end - 1):
            columns.append(_index_column(edits, a, b))
        _index_tail(edits, end, unique=unique)
    if facts.names:
        return _one(classified, edits)
    if facts.if_not_exists:
        raise TokenReader(edits.text, edits.tokens, on).unexpected()
    edits.insert(on - 1, f" {INDEX_NAME}")
    return replace(_one(classified, edits), index=tuple(columns))


def _index_column(edits: _Edits, a: int, b: int) -> str:
    """Read an element of an index, which may have an operator class; return its name for the index's."""
    for at in range(a + 1, b):
        token = edits.tokens[at]
        if token.is_word and fold(token.text).endswith("_ops") and token.depth == edits.tokens[a].depth:
            behind = edits.behind(at + 1) if edits.kind(at + 1) == "(" else at + 1
            edits.remove(at, behind, f"{fold(token.text)} has no effect: DuckDB has one kind of index")
    return edits.tokens[a].name if edits.tokens[a].is_name and edits.kind(a + 1) != "(" else "expr"


def _index_tail(edits: _Edits, at: int, *, unique: bool) -> None:
    while at < len(edits.tokens):
        if edits.are(at, "INCLUDE", "("):
            at = _include(edits, at, len(edits.tokens))
        elif edits.are(at, "WITH", "("):
            at = _parameters(edits, at, len(edits.tokens))
        elif edits.kind(at) == "NULLS":
            at = _nulls(edits, at, len(edits.tokens))
        elif edits.kind(at) == "TABLESPACE":
            edits.tunes(at, at + 2, "TABLESPACE")
            at += 2
        elif edits.kind(at) == "WHERE":
            if unique:
                raise edits.refuse(
                    at,
                    "a unique index of a part of the rows is not supported",
                    "It would refuse other rows too.",
                )
            edits.remove(at, len(edits.tokens), "WHERE has no effect: the index covers all rows")
            return
        else:
            return


# ALTER TABLE.


def _alter_table(classified: Classified, edits: _Edits) -> Expansion:
    """ALTER TABLE [IF EXISTS] [ONLY] t [*] action, ..."""
    facts = classified.ddl
    assert facts is not None and facts.table is not None
    at = next(i for i, token in enumerate(edits.tokens) if token.start == facts.places[0])
    if edits.kind(at - 1) == "ONLY":
        edits.remove(at - 1, at)
    at += 2 * len(facts.table) - 1
    if edits.kind(at) == "*":
        edits.remove(at, at + 1)
        at += 1
    if at >= len(edits.tokens):
        return _one(classified, edits)
    actions = edits.slices(at, len(edits.tokens))
    empty = next((b for a, b in actions if a == b), None)
    if empty is not None:  # DuckDB accepts a comma at the end.
        raise TokenReader(edits.text, edits.tokens, empty).unexpected()
    steps: list[Step] = []
    for a, b in actions:
        steps += _action(replace(edits, pieces=[], serials=[], adds_column=True), a, b, actions)
    if edits.pieces:
        steps = [replace(step, pieces=(*edits.pieces, *step.pieces)) for step in steps]
    return Expansion(tuple(steps), tuple(edits.notices), facts.table)


class _Action:
    """One action of ALTER TABLE: it makes statements that have this action, or another text in its place."""

    def __init__(self, edits: _Edits, a: int, b: int, actions: Sequence[tuple[int, int]]) -> None:
        self.edits, self.a, self.b = edits, a, b
        self._first, self._end = edits.tokens[actions[0][0]].start, edits.tokens[actions[-1][1] - 1].end

    def itself(self) -> Step:
        """The statement with this action, as it is edited."""
        start, end = self.edits.tokens[self.a].start, self.edits.tokens[self.b - 1].end
        around = [Replacement(self._first, start, "")] if start > self._first else []
        around += [Replacement(end, self._end, "")] if end < self._end else []
        return Step((*around, *self.edits.pieces), tuple(self.edits.serials))

    def other(self, text: str) -> Step:
        """The statement with another action."""
        return Step((Replacement(self._first, self._end, text),))


def _action(edits: _Edits, a: int, b: int, actions: Sequence[tuple[int, int]]) -> Iterator[Step]:
    action, kind = _Action(edits, a, b, actions), edits.kind(a)
    if kind == "ADD" and (edits.kind(a + 1) not in _CONSTRAINTS or edits.kind(a + 1) == "LIKE"):
        yield from _add_column(action)
    elif kind == "ADD":
        yield _add_constraint(action)
    elif edits.are(a, "DROP", "CONSTRAINT"):
        yield _drop_constraint(action)
    elif kind == "ALTER":
        yield from _alter_column(action)
    elif not _tunes_table(edits, a, b):
        for words, message, hint in _REFUSED_ACTIONS:
            if edits.are(a, *words):
                raise edits.refuse(a, message, hint)
        yield action.itself()


def _tunes_table(edits: _Edits, a: int, b: int) -> bool:
    """True for an action that tunes PostgreSQL's storage; it is noted."""
    if edits.kind(a) in ("SET", "RESET") and edits.kind(a + 1) == "(":
        names = [fold("".join(t.name for t in edits.tokens[x:y])) for x, y in edits.slices(a + 2, b - 1)]
        if not all(
            name.partition("=")[0] in _STORAGE or name.startswith(_STORAGE_PREFIXES) for name in names
        ):
            return False
        edits.note(_TUNES.format(f"{edits.kind(a)} (...)"))
        return True
    words = next((words for words in _TUNING_ACTIONS if edits.are(a, *words)), None)
    if words is not None:
        edits.note(_TUNES.format(" ".join(words)))
    return words is not None


_TUNING_ACTIONS = (
    ("SET", "TABLESPACE"), ("SET", "LOGGED"), ("SET", "UNLOGGED"), ("SET", "WITHOUT"), ("CLUSTER", "ON"),
    ("SET", "ACCESS", "METHOD"), ("REPLICA", "IDENTITY"),
)  # fmt: skip
_REFUSED_ACTIONS: tuple[tuple[tuple[str, ...], str, str | None], ...] = (
    (
        ("SET", "SCHEMA"),
        "ALTER TABLE ... SET SCHEMA is not supported",
        "CREATE TABLE other.t AS FROM t copies it.",
    ),
    (("RENAME", "CONSTRAINT"), "ALTER TABLE ... RENAME CONSTRAINT is not supported", None),
    (("VALIDATE", "CONSTRAINT"), "ALTER TABLE ... VALIDATE CONSTRAINT is not supported", None),
    (("INHERIT",), "INHERIT is not supported", "A table has neither children nor partitions."),
    (("ATTACH",), "ATTACH PARTITION is not supported", "A table has neither children nor partitions."),
    (("ENABLE",), "ALTER TABLE ... ENABLE is not supported", "There are no row security policies."),
    (
        ("DISABLE",),
        "ALTER TABLE ... DISABLE is not supported",
        "Constraints and captures are always in force.",
    ),
)


def _add_column(action: _Action) -> Iterator[Step]:
    """ADD [COLUMN] [IF NOT EXISTS] column type constraints: DuckDB adds a column only without constraints."""
    edits, b = action.edits, action.b
    at = action.a + 2 if edits.kind(action.a + 1) == "COLUMN" else action.a + 1
    if edits.are(at, "IF", "NOT", "EXISTS"):
        at += 3
    if at >= b or not edits.tokens[at].is_name:
        yield action.itself()
        return
    name = ident(edits.tokens[at].name)
    qualified = edits.kind(at + 1) == "."
    later: list[str] = []
    computed = False
    foreign_key: int | None = None
    if not qualified:
        end = _column(edits, at, b)
        for x, y, kind in _column_constraints(edits, end, b):
            if kind == "CHECK":
                raise edits.refuse(x, "ADD COLUMN with CHECK is not supported", _COPIES)
            edits.remove(x, y)
            if kind == "REFERENCES":
                foreign_key = edits.tokens[x].start
                continue
            later.append(kind)
        if edits.serials and later.count("NOT NULL") == 0:
            later.append("NOT NULL")
        # A default of the serial carries its NOT NULL in the replacement: it follows by itself.
        edits.pieces[:] = [replace(p, text=p.text.removesuffix(" NOT NULL")) for p in edits.pieces]
        computed = bool(edits.serials) or _is_computed(edits, end, b)
    yield replace(action.itself(), foreign_key=foreign_key, adds_column=True)
    texts = {
        "NOT NULL": f"ALTER COLUMN {name} SET NOT NULL",
        "UNIQUE": f"ADD UNIQUE ({name})",
        "PRIMARY KEY": f"ADD PRIMARY KEY ({name})",
    }
    for kind in dict.fromkeys(later):
        if kind != "NOT NULL" or "PRIMARY KEY" not in later:
            apart = kind if computed else None
            yield replace(action.other(texts[kind]), apart=apart, added=edits.tokens[at].name)


def _is_computed(edits: _Edits, at: int, b: int) -> bool:
    """True if a column's default is no literal."""
    at = next((i for i in range(at, b) if edits.kind(i) == "DEFAULT"), b) + 1
    return at < b and edits.kind(at) not in (STRING, NUMBER, "TRUE", "FALSE", "NULL")


def _column_constraints(edits: _Edits, at: int, b: int) -> Iterator[tuple[int, int, str]]:
    """The constraints of a column that ADD COLUMN cannot have: span and kind; names go with them."""
    depth = edits.tokens[at].depth if at < b else 0
    while at < b:
        start = at
        if edits.kind(at) == "CONSTRAINT":
            at += 2
        if edits.kind(at) == "DEFAULT":
            at = _default_end(edits, at + 1, b, depth)
        elif edits.are(at, "NOT", "NULL"):
            at += 2
            yield start, at, "NOT NULL"
        elif edits.are(at, "PRIMARY", "KEY"):
            at += 2
            yield start, at, "PRIMARY KEY"
        elif edits.kind(at) == "UNIQUE":
            at += 1
            yield start, at, "UNIQUE"
        elif edits.kind(at) == "CHECK":
            yield at, at + 1, edits.kind(at)
            return
        elif edits.kind(at) == "REFERENCES":
            at = _behind_reference(edits, at, b)
            yield start, at, "REFERENCES"
        elif edits.kind(at) == "NULL":
            edits.remove(at, at + 1)
            at += 1
        else:
            at += 1


def _behind_reference(edits: _Edits, at: int, b: int) -> int:
    """The place behind REFERENCES table [(columns)] and its clauses."""
    reader = TokenReader(edits.text, edits.tokens, at + 1)
    reader.qualified()
    at = edits.behind(reader.index) if edits.kind(reader.index) == "(" else reader.index
    while at < b and edits.kind(at) in ("MATCH", "ON", "NOT", "DEFERRABLE", "INITIALLY"):
        if edits.are(at, "NOT", "NULL"):
            break
        width = {"ON": 4 if edits.kind(at + 2) in ("SET", "NO") else 3, "DEFERRABLE": 1}.get(
            edits.kind(at), 2
        )
        at += width
        if edits.kind(at) == "(" and edits.kind(at - 2) == "SET":  # SET NULL (columns)
            at = edits.behind(at)
    return at


def _add_constraint(action: _Action) -> Step:
    """ADD [CONSTRAINT name] { UNIQUE | PRIMARY KEY | CHECK | FOREIGN KEY } ..."""
    edits, a, b = action.edits, action.a, action.b
    at = a + 3 if edits.kind(a + 1) == "CONSTRAINT" else a + 1
    kind = edits.kind(at)
    _constraints(edits, a + 1, b)
    place = edits.tokens[at].start if kind == "FOREIGN" else None
    return replace(action.itself(), foreign_key=place, action=edits.action)


def _drop_constraint(action: _Action) -> Step:
    """DROP CONSTRAINT [IF EXISTS] name [CASCADE | RESTRICT]: a constraint or a unique index."""
    edits = action.edits
    at = action.a + 2
    if_exists = edits.are(at, "IF", "EXISTS")
    at += 2 if if_exists else 0
    name = TokenReader(edits.text, edits.tokens, at).identifier()
    return Step((), constraint=name, if_exists=if_exists)


def _alter_column(action: _Action) -> Iterator[Step]:
    """ALTER [COLUMN] c action"""
    edits, b = action.edits, action.b
    at = action.a + 2 if edits.kind(action.a + 1) == "COLUMN" else action.a + 1
    if at >= b or not edits.tokens[at].is_name or edits.kind(at + 1) == ".":
        yield action.itself()
        return
    column = edits.tokens[at].name
    at += 1
    if edits.are(at, "ADD", "GENERATED"):
        yield _add_identity(action, column, at + 1)
    elif edits.are(at, "DROP", "IDENTITY"):
        step = action.other(f"ALTER COLUMN {ident(column)} DROP DEFAULT")
        yield replace(step, column=column, if_exists=edits.are(at + 2, "IF", "EXISTS"))
    elif edits.kind(at) == "RESTART":
        yield Step((), restart=Restart(_restart(edits, at, b), column=column))
    elif edits.are(at, "SET", "GENERATED"):
        always = edits.kind(at + 2) == "ALWAYS"
        if at + (3 if always else 4) < b:
            raise edits.refuse(at, "SET of several properties of an identity column is not supported")
        default = own_default(Serial(column, "").mark, ALWAYS if always else BY_DEFAULT)
        yield replace(action.other(f"ALTER COLUMN {ident(column)} SET DEFAULT {default}"), column=column)
    elif edits.kind(at) == "SET" and edits.kind(at + 1) in _SEQUENCE_WORDS:
        raise edits.refuse(
            at, "the sequence of an identity column cannot be altered", "RESTART sets its next value."
        )
    elif edits.kind(at) == "SET" and edits.kind(at + 1) in ("STATISTICS", "STORAGE", "COMPRESSION"):
        edits.note(_TUNES.format(f"SET {edits.kind(at + 1)}"))
    elif edits.kind(at) in ("SET", "RESET") and edits.kind(at + 1) == "(":
        edits.note(_TUNES.format(f"{edits.kind(at)} (...)"))
    else:
        if edits.kind(at) == "TYPE" or edits.are(at, "SET", "DATA", "TYPE"):
            first = at + (1 if edits.kind(at) == "TYPE" else 3)
            end = next((i for i in range(first, b) if edits.kind(i) in ("USING", "COLLATE")), b)
            types(edits, first, end)
            if edits.kind(end) == "COLLATE":
                _collate(edits, end, b)
        elif edits.are(at, "SET", "DEFAULT"):
            _typed_default(edits, at + 2, None)
            _default(edits, at + 2, b, edits.tokens[at].depth)
        yield action.itself()


_SEQUENCE_WORDS = frozenset(
    {"INCREMENT", "MINVALUE", "MAXVALUE", "START", "CACHE", "CYCLE", "NO", "SEQUENCE"}
)


def _add_identity(action: _Action, column: str, at: int) -> Step:
    """ALTER COLUMN c ADD GENERATED { ALWAYS | BY DEFAULT } AS IDENTITY [(options)]"""
    edits = action.edits
    always = edits.kind(at + 1) == "ALWAYS"
    at += 2 if always else 3
    if not edits.are(at, "AS", "IDENTITY"):
        raise TokenReader(edits.text, edits.tokens, min(at, len(edits.tokens))).unexpected()
    options: dict[str, str] = {}
    given: Name | None = None
    if edits.kind(at + 2) == "(":
        options, given, _ = sequence_options(edits, at + 3, closing(edits.tokens, at + 2))
    made = Serial(column, _options_text(None, options), always, given)
    default = own_default(made.mark, ALWAYS if always else BY_DEFAULT)
    return replace(action.other(f"ALTER COLUMN {ident(column)} SET DEFAULT {default}"), serials=(made,))


_RULES: dict[tuple[str, str], Callable[[Classified, _Edits], Expansion]] = {
    ("CREATE", "TABLE"): _create_table,
    ("CREATE", "TYPE"): _create_type,
    ("CREATE", "INDEX"): _create_index,
    ("CREATE", "SEQUENCE"): _create_sequence,
    ("ALTER", "TABLE"): _alter_table,
    ("ALTER", "SEQUENCE"): _alter_sequence,
}
