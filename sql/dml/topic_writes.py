"""INSERT into a topic, and PUBLISH, which is an INSERT: the query's rows become events.

The text is divided into the query of the published rows and RETURNING. DuckDB runs the query in the session's
own transaction; the INSERT around it (engine/log/topic_rows.py) converts values of its types into payloads,
keys and headers. Source: docs/topics.md.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import duckdb
import pyarrow as pa

from ...engine.capture.capture import Verb
from ...engine.catalog.captured_tables import TopicLog
from ...engine.catalog.streams import Stream
from ...engine.duck.binding import bind, type_text
from ...engine.duck.cursors import arrow_table, ask
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    DucktailError,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    ProgramLimitExceeded,
    UndefinedColumn,
)
from ...engine.log.topic_rows import COLUMNS, Publication, Rows, Single, check_error, publication, single
from ...engine.quoting import fold
from ...engine.topics import PLACE_COLUMNS, Named, Published
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..cluster import topic_publishing
from ..cluster.shares import check_owned, owners_of, remote_owners
from ..cluster.topic_publishing import PublishedShare
from ..language import statements as st
from ..results.results import ResultColumn
from ..session_state.context import Context
from ..session_state.queries import cte_targets
from ..session_state.run_text import (
    UNTOLD,
    bound_with_types,
    lossless,
    number,
    placed,
    rows_of,
    value_of,
    with_casts,
)
from ..session_state.statement import NUMERIC, Description, ParsedStatement
from ..text.classified import Classified
from ..text.spans import Replacement, cut, numbered, user_position
from ..text.tokens import PARAMETER, STRING, Token, closing
from . import group_writes
from .cut import Cut
from .dml import column_list, conflict_at


@dataclass(frozen=True, slots=True)
class TopicInsert:
    """An INSERT into a topic.

    Args:
        query: the text of the query, with the WITH before the statement.
        pieces: the replacements that make it from the statement's text.
        columns: the topic's columns that the query fills; None for all, or the first ones.
        by_name: the query's columns are matched by name.
        relation: the name by which RETURNING knows the topic.
        returning: the select list of RETURNING, or None.
        row: the row, if the query is one row of parameters (their numbers, from 1) and strings; else None.
    """

    query: str
    pieces: tuple[Replacement, ...]
    columns: tuple[str, ...] | None
    by_name: bool
    relation: str
    returning: str | None
    row: tuple[int | str, ...] | None = None

    def named(self, names: tuple[str, ...]) -> tuple[str | None, ...]:
        """The role of each of the query's columns, from their names.

        Raises:
            InvalidParameterValue: there are too many or too few columns.
            UndefinedColumn: the topic has no such column.
        """
        given: tuple[str, ...] = names if self.by_name else self.columns or COLUMNS[: len(names)]
        found = tuple(fold(name) for name in given)
        unknown = next((name for name, low in zip(given, found, strict=True) if low not in COLUMNS), None)
        if unknown is not None:
            raise UndefinedColumn(f'column "{unknown}" of a topic does not exist', hint=_HINT)
        if len(found) != len(names):
            few = "fewer" if len(names) < len(found) else "more"
            raise InvalidParameterValue(f"{few} values than columns are published", hint=_HINT)
        if len(set(found)) < len(found):
            raise InvalidParameterValue("a column of the topic is named twice")
        if "payload" not in found:
            raise InvalidParameterValue("there is no payload", hint=_HINT)
        return found


_HINT = "A topic's columns are payload, key and headers."


def cut_insert(statement: Classified, schema: str) -> TopicInsert:
    """Divide an INSERT into a topic.

    Raises:
        NotSupported: the form is not possible for an append.
    """
    facts = statement.dml
    assert facts is not None
    cutting = Cut(statement, facts, schema)
    reader = cutting.reader
    if cutting.head("INTO") is not None:
        raise NotSupported("INSERT OR ... into a topic is not supported", hint="A topic has no unique key.")
    columns = column_list(cutting)
    if reader.accept("OVERRIDING"):
        raise NotSupported("OVERRIDING is not supported on a topic")
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    first, end = reader.index, min(cutting.returning_at, cutting.end)
    if conflict_at(cutting, first, end) < end:
        raise NotSupported(
            "ON CONFLICT is not supported on a topic",
            hint="WITH (producer = 'name', sequence = n) of PUBLISH stores a repeated event once.",
        )
    if reader.peek() == "DEFAULT":
        raise NotSupported("DEFAULT VALUES is not supported on a topic", hint=_HINT)
    tokens, text = cutting.tokens, statement.text
    if first >= end:
        raise reader.unexpected()
    pieces = (
        Replacement(tokens[facts.main].start, tokens[first].start, ""),
        Replacement(tokens[end - 1].end, len(text), ""),
    )
    found = cutting.dml(Verb.INSERT)
    row = None if by_name or cutting.with_text else _row(tokens[first:end])
    return TopicInsert(cut(text, pieces), pieces, columns, by_name, found.relation, found.returning, row)


def _row(tokens: Sequence[Token]) -> tuple[int | str, ...] | None:
    """The parameters and strings of `VALUES (a, b)`, each optionally in parentheses."""
    if len(tokens) < 4 or tokens[0].kind != "VALUES" or tokens[1].kind != "(":
        return None
    last = closing(tokens, 1)
    if last != len(tokens) - 1:
        return None
    row: list[int | str] = []
    wanted = True
    at = 2
    while at < last:
        bracketed = tokens[at].kind == "("
        at += bracketed
        token = tokens[at]
        digits = token.text[1:]
        if not wanted:
            if token.kind != "," or bracketed:
                return None
        elif token.kind == STRING and token.text[0] == "'":
            row.append(token.value)
        elif token.kind == PARAMETER and token.text[0] == "$" and digits.isascii() and digits.isdigit():
            row.append(int(digits))
        else:
            return None
        wanted = not wanted
        at += 1
        if bracketed:
            if tokens[at].kind != ")":
                return None
            at += 1
    return tuple(row) if not wanted else None


Values = tuple[object, ...]
T = TypeVar("T")

# The bound of the option in the text (`language/clauses.py`).
SEQUENCE_MAX = 10**18 - 1
# The maximum length of a producer's name, which each of its events contains.
PRODUCER_CHARS_MAX = 255
# The columns that RETURNING may name.
RETURNED = "lsn, partition, payload, key, headers"
# The keys under which a statement keeps its plan, and its divided text.
_PLAN = "publication"
_CUT = "topic_insert"
# The columns of the answer to a PUBLISH.
PLACES = tuple(ResultColumn(*column) for column in PLACE_COLUMNS)
# The events of an INSERT that several nodes have stored, for the evaluation of RETURNING.
_STORED = "__ducktail_stored"


@dataclass(frozen=True, slots=True)
class _Plan:
    """An INSERT into a topic, ready for its numbers; its parameters are those of the user's text."""

    made: Publication
    insert: TopicInsert


def target(session: Context, classified: Classified) -> Stream | None:
    """The topic of an INSERT; None for another statement."""
    if classified.dml is None or classified.verb != "INSERT":
        return None
    stream = session.database.catalog.streams.get(session.names.table_key(classified.dml.target))
    return stream if stream is not None and stream.topic else None


def refuse_in_with(session: Context, text: str) -> None:
    """Refuse a text whose common table expressions publish.

    Raises:
        NotSupported: one of them does.
    """
    for name in cte_targets(text):
        stream = session.database.catalog.streams.get(session.names.table_key(name))
        if stream is not None and stream.topic and session.names.sees(stream.key):
            raise NotSupported(
                f'a common table expression cannot publish to topic "{stream.name}"',
                hint="Publish in a statement of its own, in the same transaction.",
            )


def query_of(session: Context, classified: Classified) -> TopicInsert:
    """The query of an INSERT into a topic.

    Raises:
        NotSupported: the form is not possible for an append.
    """
    return cut_insert(classified, session.names.schema)


def describe(
    session: Context, statement: ParsedStatement, classified: Classified, topic: Stream
) -> Description:
    """Describe the statement to the client before it runs.

    Args:
        classified: the text for DuckDB's binder, in which each stream scan is an empty relation.
    """
    insert = query_of(session, classified)
    published = statement.published
    given = statement.parameter_types_given
    own: dict[int, str] = {}
    if published is not None:
        for scalar, type_ in ((published.producer, "VARCHAR"), (published.sequence, "BIGINT")):
            if isinstance(scalar, st.Parameter):
                own[scalar.index] = type_
    found, _ = _at_place(insert, lambda: bound_with_types(session, insert.query, given))
    if found.names != UNTOLD:
        insert.named(found.names)
    types = {**own, **{int(name): type_ for name, type_ in found.parameters.items()}}
    for place, type_ in enumerate(given, 1):
        if type_:
            types[place] = type_
    count = max([*types, len(given)], default=0)
    columns: tuple[ResultColumn, ...] | None = None
    if published is not None:
        columns = PLACES
    elif insert.returning is not None:
        returned = bind(session.meta, _returning_sql(topic, insert, 0, 0))
        columns = tuple(map(ResultColumn, returned.names, returned.types))
    return Description(tuple(types.get(n, "VARCHAR") for n in range(1, count + 1)), columns)


def write_topic(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: Values, topic: Stream
) -> Waiting[PublishedShare]:
    """Publish the rows of the statement's query.

    Args:
        classified: the text for DuckDB: the statement's own, or the same with its stream scans replaced.
    """
    told = statement.published is not None
    part = session.part
    if part is not None and part.events:
        return (yield from topic_publishing.store_share(session, part, topic, parameters))
    named = _named(statement, parameters)
    owners = remote_owners(session, topic)
    if owners is None and named is not None and session.database.catalog.segments.of(topic.stream_id):
        # Partitions from other nodes each know whether it was published before.
        owners = owners_of(session, topic.schema, topic.name, topic.partitions)
    if owners is not None:
        rows = partial(_rows, session, statement, classified, parameters)
        returning = classified.dml is not None and classified.dml.has_returning
        if not returning or told:
            return (yield from topic_publishing.publish(session, topic, owners, rows, named, told=told))
        events: list[pa.Table] = []

        def kept(topic: Stream, transaction: Transaction) -> pa.Table:
            events.append(rows(topic, transaction))
            return events[0]

        insert = query_of(session, classified)
        done = yield from topic_publishing.publish(session, topic, owners, kept, named, told=True)
        return _returned_of_all(session, topic, insert, events[0], done)
    if named is None and classified is statement.classified:
        shared = yield from together(session, statement, parameters)
        if shared is not None:
            return shared
    check_owned(session, topic)

    def work(transaction: Transaction) -> Waiting[PublishedShare]:
        topics = session.database.topics
        present = yield from topics.enter(transaction, topic, session.block.lock_timeout_ms)
        # A placement may have come into force before the transaction got the lock.
        check_owned(session, topic)
        transaction.annotate(session.variables.annotation)
        types = _types(session, statement, parameters)
        insert, alone = _alone(session, statement, classified, parameters, present, types)
        made: Publication | Single | None = alone
        values: list[object] = []
        if made is None:
            plan = _planned(session, statement, classified, parameters, types, present, transaction)
            sql, values = numbered(plan.made.body, parameters)
            made = Publication(plan.made.topic, sql)
        before = transaction.next_lsn
        try:
            published = topics.publish(transaction, made, values, named, told=told)
        except duckdb.Error as error:
            raise translated(error) from error
        if published.repeated:
            topic_publishing.tell_repeated(session, present, published, named)
        if told:
            return _places(published)
        if insert.returning is None:
            return PublishedShare(published.events)
        return _returned(session, present, insert, before, transaction.next_lsn, published)

    again = classified.text == statement.text and not session.frames.registered
    share = yield from session.block.unit_with_memory(work, again=again)
    if classified is statement.classified:
        learn(session, statement, topic)
    return share


def learn(session: Context, statement: ParsedStatement, topic: Stream) -> None:
    """Plan a statement that has just published alone, if it may publish together with others."""
    divided, published = statement.plans.get(_CUT), statement.published
    if not isinstance(divided, TopicInsert) or divided.row is None:
        return
    if divided.returning is None if published is None else published.producer is None:
        group_writes.learn_topic(session, statement, topic)


def together(
    session: Context, statement: ParsedStatement, parameters: Values, generation: int | None = None
) -> Waiting[PublishedShare | None]:
    """Publish one event together with those of other sessions; None if it must be published alone.

    Args:
        generation: see `group_writes.plan_of`.
    """
    plan = group_writes.plan_of(session, statement, generation)
    if not isinstance(plan, group_writes.GroupPublish) or not group_writes.offers(session, statement):
        return None
    event = None
    if all(map(_is_plain, parameters)):
        types = _types(session, statement, parameters)
        _, event = _alone(session, statement, statement.classified, parameters, plan.topic, types)
    values = None if event is None else (event,)
    written = yield from group_writes.write(session, statement, plan, values, generation)
    if written is None:
        return None
    if statement.published is None:
        return PublishedShare(1)
    partition, lsn = cast(tuple[int, int], written.answer)
    return PublishedShare(1, place=(partition, lsn, session.database.placement.local.name, True))


def _is_plain(value: object) -> bool:
    """True if a value's type is known without DuckDB, and it is short."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or (isinstance(value, (str, bytes)) and len(value) <= group_writes.CHARS_MAX)


def _rows(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: Values,
    topic: Stream,
    transaction: Transaction,
) -> pa.Table:
    """The events of an INSERT into a topic of several nodes: their partition hashes, and their columns as
    texts."""
    types = _types(session, statement, parameters)
    _, alone = _alone(session, statement, classified, parameters, topic, types)
    if alone is not None:
        return alone.table()
    plan = _planned(session, statement, classified, parameters, types, topic, transaction)
    sql, values = numbered(plan.made.body, parameters)
    try:
        return arrow_table(transaction.cursor.execute(topic_publishing.ROWS_SQL.format(sql), values or None))
    except duckdb.Error as error:
        raise (check_error(str(error)) or translated(error)) from error


def _places(published: Published) -> PublishedShare:
    names, types = zip(*PLACE_COLUMNS, strict=True)
    return PublishedShare(published.events, names, types, published.places)


def _returned(
    session: Context, topic: Stream, insert: TopicInsert, after: int, through: int, published: Published
) -> PublishedShare:
    return _selected(session, _returning_sql(topic, insert, after, through), published.events)


def _returned_of_all(
    session: Context, topic: Stream, insert: TopicInsert, events: pa.Table, done: PublishedShare
) -> PublishedShare:
    """The rows of RETURNING for events that several nodes have stored, in the order of the query's rows."""
    assert done.table is not None and done.table.num_rows == events.num_rows, "each event has its place"
    places = {name: done.table.column(name) for name in ("lsn", "partition")}
    texts = {name: events.column(name) for name in ("payload", "key", "headers")}
    session.cursor.register(_STORED, pa.table({**places, **texts}))
    # Use the types of the log's columns.
    rows = f"SELECT lsn, partition, {', '.join(f'{name}::JSON AS {name}' for name in texts)} FROM {_STORED}"
    try:
        return _selected(session, f"SELECT {insert.returning} FROM ({rows}) AS {insert.relation}", done.count)
    except (DucktailError, duckdb.Error) as error:
        told = translated(error)
        told.detail = " ".join(["All events are stored.", *([told.detail] if told.detail else [])])
        raise told from error
    finally:
        session.cursor.unregister(_STORED)


def _selected(session: Context, sql: str, events: int) -> PublishedShare:
    types = bind(session.cursor, sql).types
    try:
        with lossless(session, types):
            columns, table = rows_of(session, sql, ())
    except duckdb.Error as error:
        raise translated(error) from error
    return PublishedShare(
        events, tuple(column.name for column in columns), tuple(c.type for c in columns), table
    )


def _returning_sql(topic: Stream, insert: TopicInsert, after: int, through: int) -> str:
    log = TopicLog(topic).log
    rows = f"SELECT {RETURNED} FROM {log} WHERE lsn > {after} AND lsn <= {through} ORDER BY lsn"
    return f"SELECT {insert.returning} FROM ({rows}) AS {insert.relation}"


def _alone(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: Values,
    topic: Stream,
    types: tuple[str, ...],
) -> tuple[TopicInsert, Single | None]:
    """The INSERT, and its event if it consists of plain values and needs no query."""
    kept = statement.plans.get(_CUT)
    if classified.text == statement.text and isinstance(kept, TopicInsert):
        insert = kept
    else:
        insert = query_of(session, classified)
        if classified.text == statement.text:
            statement.plans[_CUT] = insert
    row = insert.row
    if row is None:
        return insert, None
    columns = insert.named(("",) * len(row))
    values: dict[str, object] = {}
    of: dict[str, str] = {}
    for name, item in zip(columns, row, strict=True):
        assert name is not None
        if isinstance(item, int):
            if item > len(parameters):
                return insert, None
            values[name], of[name] = parameters[item - 1], types[item - 1]
        else:
            values[name], of[name] = item, "VARCHAR"
    return insert, single(topic, values, of)


def _planned(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: Values,
    types: tuple[str, ...],
    topic: Stream,
    transaction: Transaction,
) -> _Plan:
    """The plan for parameters of these types, kept with the statement; names are resolved in the snapshot."""
    division = session.variables.integer_division
    key = (topic, transaction.catalog_version, session.names.path, division, types)
    kept = statement.plans.get(_PLAN)
    own = classified.text == statement.text and not session.block.ddl
    if own and isinstance(kept, tuple) and kept[0] == key:
        plan: _Plan = kept[1]
        return plan
    insert = query_of(session, classified)
    query, names, column_types = _at_place(insert, lambda: _bound(session, insert, types))
    untold = names == UNTOLD
    if untold:
        # The columns depend on a parameter's value, as in `range($1)`.
        text, values = numbered(query, parameters)
        relation = session.cursor.sql(text, params=values or None)
        names, column_types = tuple(relation.columns), tuple(map(type_text, relation.types))
    columns = list(zip(insert.named(names), column_types, strict=True))
    plan = _Plan(publication(topic, Rows(query, columns)), insert)
    if own and not untold:
        statement.plans[_PLAN] = (key, plan)
    return plan


def _bound(
    session: Context, insert: TopicInsert, types: tuple[str, ...]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The query with its parameters cast to their types, and its columns' names and types."""
    try:
        found = bind(session.cursor, insert.query).parameters if "" in types else {}
        # A NULL of undetermined type is text.
        known = {str(n): type_ or found.get(str(n), "VARCHAR") for n, type_ in enumerate(types, 1)}
        query = with_casts(insert.query, known)
        told = bind(session.cursor, query)
        return query, told.names, told.types
    except duckdb.Error as error:
        raise placed(session, error, insert.query) from error


# DuckDB's types of Python's values; DuckDB determines the types of other values.
_TYPES: dict[type, str] = {
    type(None): "",
    str: "VARCHAR",
    bytes: "BLOB",
    bytearray: "BLOB",
    memoryview: "BLOB",
    bool: "BOOLEAN",
    float: "DOUBLE",
    datetime.date: "DATE",
}


def _types(session: Context, statement: ParsedStatement, parameters: Values) -> tuple[str, ...]:
    """The type of each parameter: the client's declared type, else that of its value; "" for a NULL."""
    given = statement.parameter_types_given
    found = []
    for place, value in enumerate(parameters):
        declared = given[place] if place < len(given) and given[place] != NUMERIC else ""
        known = declared or _TYPES.get(type(value))
        if type(value) is int and -(2**63) <= value < 2**63:
            known = declared or "BIGINT"
        if known is None:
            known = type_text(ask(session.meta, "SELECT typeof($1)", [value])[0])
        found.append(known)
    return tuple(found)


def _named(statement: ParsedStatement, parameters: Values) -> Named | None:
    """Producer and sequence of a PUBLISH, if given."""
    published = statement.published
    if published is None or published.producer is None:
        return None
    assert published.sequence is not None
    producer = str(value_of(published.producer, parameters))
    sequence = number(published.sequence, parameters, "sequence")
    if not producer:
        raise InvalidParameterValue("the producer has no name")
    if len(producer) > PRODUCER_CHARS_MAX:
        raise ProgramLimitExceeded(f"the producer's name is longer than {PRODUCER_CHARS_MAX} characters")
    if "\0" in producer:
        raise InvalidTextRepresentation("the producer's name holds the character 0")
    if sequence > SEQUENCE_MAX:
        raise InvalidParameterValue(f"sequence must not be greater than {SEQUENCE_MAX}: {sequence}")
    return Named(producer, sequence)


def _at_place(insert: TopicInsert, work: Callable[[], T]) -> T:
    """Do `work`; the position of its error refers to the user's text."""
    try:
        return work()
    except DucktailError as error:
        if error.position is not None:
            error.position = user_position(error.position, insert.pieces)
        raise


def refuse_explained(topic: Stream) -> NotSupported:
    """The error for EXPLAIN ANALYZE of an INSERT into a topic, which would publish."""
    return NotSupported(
        f'EXPLAIN ANALYZE cannot publish to topic "{topic.name}"',
        hint="EXPLAIN shows the plan of what would be published.",
    )
