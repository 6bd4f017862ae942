"""The first step of a statement: its text is classified, parsed, and placed on a node.

Source: docs/design/sql.md, "From text to answer".
"""

from __future__ import annotations

from dataclasses import replace

from ...engine.errors import DucktailError, InsufficientPrivilege, NotSupported, SyntaxError_
from ...engine.quoting import fold
from ...engine.values import value_types
from ..cluster import relay
from ..copy import files
from ..language import statements as st
from ..language.classify import classify
from ..language.do_block import read_block
from ..language.parse import Query, has_scan, parse
from ..language.postgres_ddl import EXPANDING, expand
from ..language.statements.publishing import Published, as_insert, published_positions
from ..peers.requests import Part, split
from ..rights.hidden_names import without_password
from ..rights.plan import refuse_passwords
from ..session_state.context import Context
from ..session_state.statement import NUMERIC, ParsedStatement, RemoteTarget
from ..statements import session_calls
from ..text.classified import Classified, Kind
from ..text.spans import Replacement, cut, user_position
from ..text.tokens import tokenize
from . import user_types
from .grouped_by_key import grouped_columns, may_group
from .json_containment import contained, may_contain
from .postgres_schemas import in_schema, may_name_schema
from .record_literals import may_be_record, record_literals
from .sequence_names import may_name_sequence, may_read_sequence, named_sequences, read_sequences
from .short_rows import column_list

# PostgreSQL's forms that depend on the catalog: a cheap look at the folded text, and the replacements.
FORMS = (
    (may_name_sequence, named_sequences),
    (may_read_sequence, read_sequences),
    (may_group, grouped_columns),
    (may_name_schema, in_schema),
    (may_contain, contained),
    (may_be_record, record_literals),
)
# Longer texts are left as they are.
FORMS_CHARS_MAX = 64 * 1024
# Types without a DuckDB type of their own.
NUMERIC_OIDS = {value_types.NUMERIC: NUMERIC, value_types.ARRAY_OF[value_types.NUMERIC]: f"{NUMERIC}[]"}

# Kinds whose text may hold a stream scan.
SCANNABLE = frozenset({Kind.READ, Kind.DML, Kind.DDL, Kind.COPY})


def prepare(session: Context, text: str, oids: tuple[int, ...]) -> ParsedStatement:
    """Parse a statement's text.

    Raises:
        SyntaxError_: the text is invalid; the error has its position.
        NotSupported: the statement is not supported in this version.
        InsufficientPrivilege: it names a file outside the allowed directories, or is one that only nodes may
            send.
    """
    refuse_passwords(text)
    part: Part | None = None
    if session.peer is not None:
        part, text = split(text)
    published: Published | None = None
    given, pieces = text, _catalog_forms(session, text)
    text = cut(text, pieces) if pieces else text
    try:
        classified, node = _read(session, text)
        if (listed := column_list(session, classified)) is not None:
            place = user_position(listed.start + 1, pieces) - 1
            pieces = (*pieces, replace(listed, start=place, end=place))
            classified, node = _read(session, cut(given, pieces))
    except SyntaxError_ as error:
        raise without_password(text, error) from None
    if classified.kind is Kind.FORWARD and session.peer is None:
        raise InsufficientPrivilege(
            "permission denied to run FORWARD", detail="Nodes of a cluster send it to each other."
        )
    away, node = _placed(session, classified, node)
    if isinstance(node, st.Publish) and away is None:
        insert, published = as_insert(text, node)
        with published_positions(published):
            classified, node = _read(session, insert)
    types = tuple(_declared(session, oid) for oid in oids)
    statement = ParsedStatement(
        classified,
        node,
        types,
        session.describe,
        session.is_inline,
        published,
        part,
    )
    statement.pieces, statement.user_oids = pieces, user_types.element_oids(oids)
    statement.away, statement.epoch = away, session.database.cluster.placement.epoch
    return statement


def _placed(session: Context, classified: Classified, node: object) -> tuple[RemoteTarget | None, object]:
    """The node that runs a statement, if it is another one; and the statement, with remote scans marked."""
    if session.links is None:
        return None, node
    if classified.kind is Kind.EXPLAIN and classified.explain is not None:
        return _placed(session, *_read(session, classified.explain.inner))[0], node
    if classified.kind is Kind.CURSOR and classified.cursor is not None and classified.cursor.inner:
        # The lookup of the node may need other nodes, which is possible now; the error is raised in any case.
        _placed(session, *_read(session, classified.cursor.inner))
        return None, node
    return relay.placed(session, classified, node)


def _catalog_forms(session: Context, text: str) -> tuple[Replacement, ...]:
    """The replacements of PostgreSQL's forms that depend on the session's catalog."""
    if len(text) > FORMS_CHARS_MAX:
        return ()
    folded = fold(text)
    forms = [find for may_occur, find in FORMS if may_occur(folded)]
    if not forms:
        return ()
    try:
        tokens = tokenize(text)
    except DucktailError:
        return ()  # Classification reports it.
    found = (piece for find in forms for piece in find(session, tokens))
    pieces: list[Replacement] = []
    for piece in sorted(found, key=lambda one: (one.start, -one.end)):
        if not pieces or piece.start >= pieces[-1].end or piece.start == piece.end:  # Not within another.
            pieces.append(piece)
    return tuple(pieces)


def again(session: Context, text: str, statement: ParsedStatement) -> ParsedStatement:
    """A statement parsed from the text with qualified names.

    Args:
        statement: the statement of the text as given.
    """
    classified, node = _read(session, text, expands=False)
    if statement.classified.locking:
        # The text has blanks in the places of its clauses.
        classified = replace(classified, locking=statement.classified.locking)
    away, node = _placed(session, classified, node)
    assert away is None, "what is another node's is resolved there"
    made = ParsedStatement(
        classified,
        node,
        statement.parameter_types_given,
        session.describe,
        session.is_inline,
        statement.published,
        statement.part,
    )
    made.arrow, made.epoch, made.lacks = statement.arrow, statement.epoch, statement.lacks
    made.user_oids = statement.user_oids
    if statement.described is not None or statement.casts is not None:
        made.tell(statement.description)
    return made


def _read(session: Context, text: str, *, expands: bool = True) -> tuple[Classified, object]:
    """Classify a text, and parse it if it is a statement of ducktail.

    Args:
        expands: a definition in PostgreSQL's form is expanded.
    """
    classified = classify(text)
    files.check_named(session, classified)
    if classified.kind is Kind.READ and (calls := session_calls.read(text)):
        return replace(classified, kind=Kind.CALL), calls
    if expands and (classified.kind is Kind.DDL or classified.verb in EXPANDING):
        expansion = expand(classified)
        if expansion is not None:
            return replace(classified, kind=Kind.EXPANDED), expansion
    if classified.kind is Kind.DO:
        return classified, read_block(classified)
    if classified.kind is Kind.OURS or (classified.kind in SCANNABLE and has_scan(text)):
        parsed = parse(classified.text, session.names.is_table)
        if isinstance(parsed, Query) and parsed.scans and classified.locking:
            raise NotSupported(
                f"FOR {classified.locking[0].strength} is not supported with a read of a stream",
                detail="Events never change.",
                position=classified.locking[0].position + 1,
            )
        if isinstance(parsed, Query) and parsed.commits is not None:
            _check_commit(classified, parsed.commits)
        if not isinstance(parsed, Query) or parsed.scans:
            return classified, parsed
    return classified, None


def _check_commit(classified: Classified, scan: st.Scan) -> None:
    """Refuse COMMIT in a statement that stores what it reads: its own transaction commits both together."""
    copy = classified.copy
    is_read = classified.kind is Kind.READ or (copy is not None and copy.client and not copy.reads)
    if is_read and not classified.cte_writes:
        return
    what = "a query that writes" if is_read else classified.verb
    raise NotSupported(
        f"COMMIT of a stream scan is not supported in {what}",
        hint="Write in a transaction, and run COMMIT OFFSETS in it: data and offsets are committed together.",
        position=scan.start + 1,
    )


def _declared(session: Context, oid: int) -> str:
    """The DuckDB type of a parameter's declared OID; "" if undeclared."""
    if oid in NUMERIC_OIDS:
        return NUMERIC_OIDS[oid]
    if oid >= value_types.USER_OID_FIRST and session.object_oid is not None:
        return user_types.known(session).duckdb_type(oid)
    return (value_types.duckdb_type(oid) or "") if oid else ""
