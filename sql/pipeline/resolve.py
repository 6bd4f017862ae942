"""The resolution of a statement's names, the step after parsing: each name is written in full.

Each name of a table, view, sequence, type or index in a text is resolved once (`names.py`) and written in
full, `"catalog"."schema"."name"`, as it is stored. Rights are checked on that text, capture works on it,
and DuckDB receives it: a temporary object, a common table expression, a search path, a case rule or another
session cannot change its meaning. A name that does not resolve is left unchanged, and is an error later.

For users who are not superusers every name is written in full. For all others only the names of the targets
of writes and definitions are, if they could mean more than one object, because they distinguish captured
from plain tables. Source: docs/design/sql.md, "Names".
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_

from ...engine.duck.objects import DEFAULT_SCHEMA, INDEX, SEQUENCE, TABLE, TEMPORARY, TYPE
from ...engine.errors import DucktailError, InsufficientPrivilege
from ...engine.quoting import fold, ident, literal
from ..rights.analysis import SEQUENCES, Named, NotAnalysed, parts_of
from ..rights.reach import TRUSTED, sequence_parts
from ..session_state.context import Context
from ..session_state.queries import cte_target_places
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, DdlFacts, Kind, Name
from ..text.spans import Replacement, cut
from ..text.tokens import STRING, Token
from . import placed_literals
from .parsing import again

_KINDS = {
    "TABLE": TABLE, "VIEW": TABLE, "COLUMN": TABLE, "SEQUENCE": SEQUENCE, "TYPE": TYPE, "INDEX": INDEX,
    "CONSTRAINT": TABLE,
}  # fmt: skip
# Words after which a query or a data-modifying expression may begin, besides the beginning of a text.
_BEFORE_STATEMENT = frozenset({"(", ")", "AS", "UNION", "EXCEPT", "INTERSECT", "ALL", "NAME", "MATERIALIZED"})
# Statements in which the parser reports no position of the table, and the words that may precede its name.
_PLACELESS = {
    "INSERT": ("OR", "REPLACE", "IGNORE", "INTO"), "DELETE": ("FROM",), "UPDATE": ("OR", "REPLACE", "IGNORE"),
    "TRUNCATE": ("TABLE",), "TABLE": (), "DESCRIBE": ("TABLE",), "DESC": ("TABLE",), "SUMMARIZE": ("TABLE",),
}  # fmt: skip


# Kinds of statements without names of DuckDB's objects, or with another statement inside.
_WITHOUT = frozenset(
    {Kind.EMPTY, Kind.TRANSACTION, Kind.DEALLOCATE, Kind.REFUSED, Kind.FORWARD, Kind.CALL, Kind.CURSOR}
    | {Kind.DO, Kind.EXPANDED, Kind.EXPLAIN, Kind.PREPARE, Kind.EXECUTE, Kind.OURS, Kind.UTILITY}
)


# The key under which a statement keeps its qualified form, with its state of the catalog.
_FULL = "in full"


@dataclass(frozen=True, slots=True)
class _QualifiedStatement:
    """A statement with qualified names, and the state of catalog and rights to which it belongs.

    Args:
        full: the qualified statement; None if the statement is qualified itself.
    """

    full: ParsedStatement | None
    same: tuple[object, ...]


def in_full(session: Context, statement: ParsedStatement) -> ParsedStatement:
    """The statement with qualified names; the statement itself if they are qualified."""
    access, names = session.access, session.names
    if session.block.whole and access.limited and not statement.waits:
        session.block.touched()
    if not _may_be_in_full(session, statement):
        return statement
    # Each of them is replaced at each change, so that a comparison by identity suffices.
    same = (names.objects(), names.temporary_objects(), access.rights, names.path)
    kept = statement.plans.get(_FULL)
    if isinstance(kept, _QualifiedStatement) and all(map(is_, kept.same, same)):
        return kept.full or statement
    pieces = _pieces_in_full(session, statement)
    full = kept.full if isinstance(kept, _QualifiedStatement) else None
    text = cut(statement.classified.text, pieces)
    if not pieces:
        full = None
    elif full is None or full.text != text:
        full = again(session, text, statement)
        full.pieces = pieces
    statement.plans[_FULL] = _QualifiedStatement(full, same)
    return full or statement


def _may_be_in_full(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement may contain names to qualify."""
    classified = statement.classified
    if statement.away is not None or classified.error is not None or classified.kind in _WITHOUT:
        return False
    if session.access.limited or _may_mean_several(session, classified):
        return True
    return bool(placed_literals.placed_literals(session, statement))


def _pieces_in_full(session: Context, statement: ParsedStatement) -> tuple[Replacement, ...]:
    """The replacements that qualify the names of a statement; empty if none is needed."""
    classified, limited = statement.classified, session.access.limited
    naming = _Naming(session, classified)
    if classified.dml is not None:
        naming.target(classified.dml.target, classified.dml.target_position, limited=limited)
    elif classified.copy is not None and classified.copy.table is not None:
        naming.target(classified.copy.table, classified.copy.table_position, limited=limited)
    elif classified.ddl is not None:
        _definition(naming, classified.ddl, limited=limited)
    if classified.cte_writes and not limited:
        for name, start in cte_target_places(classified.text):
            naming.target(name, start, limited=False)
    if classified.ddl is not None and not classified.ddl.temporary:
        _sequences(naming)
    # A view's text is kept: qualified, it means the same to each reader.
    if limited or classified.verb == "CREATE VIEW":
        _read(session, naming, statement)
    return (*naming.pieces, *placed_literals.read_by_place(session, statement))


def _may_mean_several(session: Context, classified: Classified) -> bool:
    """True if the name of a statement's target or new object could mean one of several objects."""
    if classified.kind not in (Kind.DML, Kind.DDL, Kind.COPY) and not classified.cte_writes:
        return False
    facts = classified.ddl
    if facts is not None and facts.verb == "CREATE" and facts.object_type == "VIEW":
        return not (facts.temporary or (session.names.plain and len(facts.names[0]) == 1))
    return not session.names.plain


class _Naming:
    """Collector of the replacements that qualify names, each position once."""

    def __init__(self, session: Context, classified: Classified) -> None:
        self._names = session.names
        self._resolver = session.names.resolver
        self._at = {token.start: index for index, token in enumerate(classified.tokens)}
        self.tokens = classified.tokens
        self.text = classified.text
        self._pieces: dict[int, Replacement] = {}

    @property
    def pieces(self) -> tuple[Replacement, ...]:
        """The replacements in the order of the text."""
        return tuple(self._pieces[start] for start in sorted(self._pieces))

    def name(self, kind: str, parts: Name, start: int) -> None:
        """The replacement for the name of an existing object."""
        found = None
        if fold(parts[0]) != TRUSTED:
            found = self._names.find(kind, parts) if kind == INDEX else self._resolver.find(kind, parts)
        if found is not None:
            self.put(start, parts, found.in_full)

    def target(self, parts: Name, start: int, *, limited: bool) -> None:
        """Qualify the name of a written table.

        A missing table may exist when DuckDB looks, with a stream by then, so it gets one schema in which it
        is missing. To a limited user it is missing now (rights/reach.py).
        """
        self.name(TABLE, parts, start)
        if start not in self._pieces and not limited and self._resolver.find(TABLE, parts) is None:
            self.made(parts, start)

    def made(self, parts: Name, start: int) -> None:
        """The replacement for a new object's name; the default is the first schema of the search path."""
        resolver = self._resolver
        if fold(parts[0]) == TEMPORARY or len(parts) > 2:
            return
        if len(parts) == 2 and fold(parts[0]) == fold(resolver.catalog):
            if not resolver.objects.has_schema(parts[0]):
                self.put(start, parts, f"{ident(resolver.catalog)}.{DEFAULT_SCHEMA}.{ident(parts[1])}")
            return
        schema = parts[0] if len(parts) == 2 else resolver.path[0]
        if resolver.objects.has_schema(schema):
            full = f"{ident(resolver.catalog)}.{ident(schema)}.{ident(parts[-1])}"
            self.put(start, parts, full)

    def sequence(self, token: Token) -> None:
        """Qualify a string that is a sequence's name.

        The name is stored in the file, and the catalog has the file's name, so it is qualified by the schema
        only.
        """
        try:
            found = self._resolver.find(SEQUENCE, sequence_parts(token.value))
        except InsufficientPrivilege:
            return  # The check of rights reports the error.
        if found is not None:
            full = literal(f"{ident(found.schema)}.{ident(found.name)}")
            self._pieces[token.start] = Replacement(token.start, token.end, full)

    def put(self, start: int, parts: Name, full: str) -> None:
        """Replace a name that begins at a position, if it is there."""
        first = self._at.get(start)
        if first is None:
            return
        last, token = first + 2 * (len(parts) - 1), self.tokens[first]
        said = (token.value,) if token.kind == STRING else self.chain(first)[: len(parts)]
        if said == parts and self.text[start : self.tokens[last].end] != full:
            self._pieces[start] = Replacement(start, self.tokens[last].end, full)

    def chain(self, index: int) -> Name:
        """The name that begins at a token; () if there is none."""
        parts: list[str] = []
        while index < len(self.tokens) and self.tokens[index].is_name:
            parts.append(self.tokens[index].name)
            if index + 1 >= len(self.tokens) or self.tokens[index + 1].kind != ".":
                break
            index += 2
        return tuple(parts)


# Written and defined names.


def _definition(naming: _Naming, facts: DdlFacts, *, limited: bool) -> None:
    kind = _KINDS.get(facts.object_type)
    if (kind is not None and facts.object_type != "INDEX") or facts.verb != "CREATE":
        for name, start in zip(facts.names, facts.places, strict=True):
            if facts.verb == "CREATE":
                if not facts.temporary:
                    naming.made(name, start)
            elif kind is not None:
                naming.name(kind, name[:-1] if facts.object_type == "COLUMN" else name, start)
    if facts.object_type == "INDEX" and facts.table is not None and facts.table_place is not None:
        naming.name(TABLE, facts.table, facts.table_place)
    for index, token in enumerate(naming.tokens[:-1]):
        owned = token.kind == "BY" and index and naming.tokens[index - 1].kind == "OWNED"
        if owned or (limited and token.kind == "REFERENCES" and not facts.temporary):
            parts = naming.chain(index + 1)
            if parts:
                naming.name(TABLE, parts, naming.tokens[index + 1].start)


def _sequences(naming: _Naming) -> None:
    """Qualify sequence names in a definition, which are strings: DuckDB looks them up at each use.

    In a query they are left unchanged, because columns are named after them: a query is checked by the same
    rules, and runs now.
    """
    for at, token in enumerate(naming.tokens[:-2]):
        if not token.is_name or fold(token.name) not in SEQUENCES or naming.tokens[at + 1].kind != "(":
            continue
        if naming.tokens[at + 2].kind == STRING:
            naming.sequence(naming.tokens[at + 2])


# Read names.


def _read(session: Context, naming: _Naming, statement: ParsedStatement) -> None:
    """Qualify all names in the queries and expressions of a statement."""
    try:
        parts = parts_of(session, statement)
    except DucktailError:
        if statement.classified.verb == "MERGE":
            return  # It cannot be divided: the check of rights reports the error.
        raise
    for part in parts:
        try:
            named = part.named(session.names.cursor())
        except (NotAnalysed, DucktailError):
            continue  # The check of rights reports the error.
        if part.edits is None:
            continue
        for table in named.tables:
            if table.place is not None:
                naming.name(TABLE, table.path, table.place)
        if any(table.place is None for table in named.tables):
            _placeless(naming, named)


def _placeless(naming: _Naming, named: Named) -> None:
    """Qualify tables after words for which the parser reports no position."""
    wanted = {table.path for table in named.tables if table.place is None}
    for index, token in enumerate(naming.tokens):
        words = _PLACELESS.get(token.kind)
        if words is None or (index and naming.tokens[index - 1].kind not in _BEFORE_STATEMENT):
            continue
        at = index + 1
        while at < len(naming.tokens) and naming.tokens[at].kind in words:
            at += 1
        parts = naming.chain(at)
        if parts in wanted:
            naming.name(TABLE, parts, naming.tokens[at].start)
