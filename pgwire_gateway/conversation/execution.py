"""Execution of one statement on the session: prepare, run, send rows, answer errors, measure.

Both query protocols use it. A statement's time runs from its Query or Execute to CommandComplete or an error:
it includes waits for locks and for a client that takes its rows slowly. For a portal that is read in pieces
only the first piece counts as a statement; a text that cannot be parsed or bound counts too, with an unknown
kind. Source: PostgreSQL documentation, "Message Flow".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from traceback import format_tb

from ...engine.errors import (
    CachedPlanChanged,
    DucktailError,
    IntegrityViolation,
    InternalError,
    ProgramLimitExceeded,
)
from ...engine.server_log import facts
from ...engine.values import value_types
from ...engine.values.client_encodings import ENCODINGS, UTF8, Encoding
from ...sql.results.results import Result, ResultBatch, ResultColumn
from ...sql.session_state.statement import ParsedStatement
from ...sql.text.classified import Kind
from ...sql.text.tokens import StatementPiece, split_pieces
from .. import catalog
from ..codec import encode
from ..codec.backend import (
    CommandComplete,
    ErrorResponse,
    Field,
    NoticeResponse,
    NotificationResponse,
    ParameterStatus,
    ReadyForQuery,
    Report,
    RowDescription,
)
from .channel import Channel, Need, Steps
from .interfaces import EndedStatement, Session
from .row_transfer import FIRST_ROWS, encoded, rows_wanted, send_rows, take_rows
from .statement_text import Described, StatementText, is_long_text

UNKNOWN = "unknown"


class StatementTimer:
    """The timer of the present statement of one conversation.

    Args:
        now_s: a monotonic clock, in seconds.
        tell: receives each ended statement.
        trace: returns the session's trace id.
    """

    __slots__ = ("_kind", "_now_s", "_resumed", "_session_id", "_start_s", "_tell", "_text", "_trace", "last")

    def __init__(
        self,
        session_id: int,
        now_s: Callable[[], float],
        tell: Callable[[EndedStatement], None],
        trace: Callable[[], str] = str,
    ) -> None:
        self._session_id = session_id
        self._trace = trace
        self._now_s = now_s
        self._tell = tell
        self._text = ""
        # The text of the last statement.
        self.last = ""
        self._kind: Kind | None = None
        self._resumed = False
        self._start_s = 0.0

    @property
    def text(self) -> str:
        """The statement, as the client sent it."""
        return self._text

    def reset(self, text: str = "") -> None:
        """Reset the timing for a message, or for the next statement of its text."""
        self._text, self._kind, self._resumed = text, None, False
        self._start_s = self._now_s()
        if text:
            self.last = text

    def found(self, kind: Kind, text: str, *, resumed: bool = False) -> None:
        """Record the kind of the statement."""
        self._kind, self._text, self._resumed = kind, text, resumed
        self.last = text

    def end(self, sqlstate: str | None = None, *, unanswered: bool = False, executions: int = 1) -> None:
        """Report the end of a statement or of a piece of it; a failed message without a statement counts too.

        Args:
            executions: the number of executions that ran as one.
        """
        kind = UNKNOWN if self._kind is None else str(self._kind.value)
        seconds = self._now_s() - self._start_s
        self._tell(
            EndedStatement(
                self._session_id,
                kind,
                sqlstate,
                seconds,
                self._text,
                self._resumed,
                unanswered,
                executions,
                self._trace(),
            )
        )


# Command tags of statements about both the protocol's prepared statements and those of SQL.
DEALLOCATES_ALL = frozenset({"DEALLOCATE ALL", "DISCARD ALL"})

# The maximum number of known inline texts: they are few, and drivers repeat theirs. A client with ever new
# texts is also served, with one more hop.
INLINE_TEXTS_MAX = 256

# A DataRow without columns.
_EMPTY_ROW = b"D\0\0\0\6\0\0"
# The number of columns is an Int16, which some clients read as signed.
COLUMNS_MAX = 0x7FFF

# Bounds of the kept texts and column lists, with their tokens and descriptions, in all sessions together, and
# of a single text: some megabytes at the most.
KEPT_MAX = 1024
KEPT_TEXT_CHARS_MAX = 4096

log = logging.getLogger("ducktail.gateway")


class Work:
    """The common part of both query protocols: a channel, a session, and the reports."""

    def __init__(self, channel: Channel, session: Session, observed: StatementTimer) -> None:
        self.channel = channel
        self.session = session
        self.observed = observed
        # The protocol's prepared statements, by name; DEALLOCATE looks here first.
        self.prepared: dict[str, Prepared] = {}
        # Texts of this session that are known to parse and run without a worker thread.
        self._inline_texts: set[str] = set()
        self._reported = dict(session.parameter_status())
        channel.encoding = ENCODINGS[self._reported.get("client_encoding", UTF8.name)]
        self._styles = value_types.Styles.of(self._reported)
        self._changed: dict[str, str] = {}
        session.spell = _spelling
        session.object_oid = catalog.object_oid
        session.last_text = lambda: observed.last
        session.bound_statements = self._bound_statements

    def _bound_statements(self) -> list[tuple[str, str, int, tuple[int, ...]]]:
        """Name, text, time of creation and the parameters' OIDs of the protocol's prepared statements."""
        found = list(self.prepared.items())
        return [(name, each.source.text, each.made_us, each.oids) for name, each in found if name]

    def pieces(self, text: str) -> Sequence[StatementPiece]:
        """The statements of a text; those of short texts are kept, because drivers repeat theirs."""
        return _kept_pieces(text) if len(text) <= KEPT_TEXT_CHARS_MAX else split_pieces(text)

    def parse(
        self, text: str, offset: int, oids: Sequence[int] = (), *, told: bool
    ) -> Steps[tuple[StatementText, ParsedStatement]]:
        """Parse one statement that begins `offset` characters into the client's text.

        Args:
            told: True if the client may request its columns before it runs.
        """
        inline = text in self._inline_texts
        # A client that is told the columns first needs the binder for each new text.
        if not (inline or (not told and not is_long_text(text) and self.session.is_known_write(text))):
            yield Need.WORKER
        self.channel.check_cancelled()
        source = _kept_source(offset, text) if len(text) <= KEPT_TEXT_CHARS_MAX else _source(offset, text)
        declared = oids
        uncast, converted = catalog.numeric_parameters(source.rewritten, oids)
        if converted:
            source = replace(source, rewritten=uncast, converted=converted, described=None, _shown=None)
            declared = source.given(oids)
        if (shown := catalog.shown_arrays(source.rewritten, oids)) != source.rewritten:
            source = replace(source, rewritten=shown, described=None, _shown=None)
        if numeric := catalog.numeric_columns(uncast if converted else text, declared):
            source = replace(source, numeric=numeric, described=None, _shown=None)
        with placed(source):
            statement: ParsedStatement = yield from self.session.parse(
                source.rewritten, source.given(oids), told=told
            )
            if source.reads_catalog:
                _ = statement.columns  # Binds it, so that its errors are reported now.
        if (
            not inline
            and len(self._inline_texts) < INLINE_TEXTS_MAX
            and not is_long_text(text)
            and statement.inline
            and not statement.varies
        ):
            self._inline_texts.add(text)
        return source, statement

    def renew(self, prepared: Prepared) -> Steps[None]:
        """Describe a statement again if its columns may have changed, for example by an ALTER TABLE."""
        if self.session.is_stale(prepared.statement):
            yield Need.WORKER
            with placed(prepared.source):
                self.session.renew(prepared.statement)
        # Other clients share the session's statement, which may have been described again for one of them.
        columns = prepared.source.columns(prepared.statement.columns)
        if columns is not prepared.columns:
            check_width(columns)
            prepared.columns = columns

    def execute(
        self,
        source: StatementText,
        statement: ParsedStatement,
        parameters: Sequence[object],
        rows: int | None = None,
        *,
        long: bool = False,
    ) -> Steps[Result]:
        """Run a statement; notices are sent at once, changed parameters before ReadyForQuery.

        Args:
            rows: the number of rows to fetch first; None for all.
            long: its parameters are too long for the event loop.
        """
        if statement.classified.kind is Kind.DEALLOCATE and statement.classified.name in self.prepared:
            del self.prepared[statement.classified.name]
            return Result.command("DEALLOCATE")
        if long or source.long or not (statement.inline or self._sent_inline(statement, parameters)):
            yield Need.WORKER
        self.channel.check_cancelled()
        self.session.first_rows = rows
        with placed(source):
            result: Result = yield from self.session.execute(statement, parameters)
        if result.copy_in is not None:
            result = yield from take_rows(self.channel, self.session, result.copy_in)
        if result.copy_out is not None:
            types = self.types(result.columns or ())
            yield from send_rows(self.channel, result, types, result.copy_out, self._reported["TimeZone"])
            assert result.tag is not None, "an exhausted result has its tag"
            result = Result.command(result.tag)
        self._take_news()
        return result

    def _sent_inline(self, statement: ParsedStatement, parameters: Sequence[object]) -> bool:
        """True if a statement from another node needs no worker thread."""
        return statement.classified.kind is Kind.FORWARD and self.session.sent_inline(parameters)

    def describe(
        self, source: StatementText, columns: Sequence[ResultColumn], formats: Sequence[int]
    ) -> None:
        """Send RowDescription."""
        kept, encoding = source.described, self.channel.encoding
        if (
            kept is None
            or kept.columns is not columns
            or kept.formats != tuple(formats)
            or kept.encoding is not encoding
        ):
            check_width(columns)
            message = _description(tuple(columns), tuple(spread(formats, len(columns))), encoding)
            kept = source.described = Described(columns, tuple(formats), message, encoding)
        self.channel.send_bytes(kept.message)

    def send_rows(
        self, source: StatementText, result: Result, formats: Sequence[int], limit: int | None = None
    ) -> Steps[bool]:
        """Send rows of a statement's result, at most `limit`; True at the end.

        The answer is False when the limit is reached, because it is unknown whether more rows follow.
        """
        columns = source.columns(result.columns) or ()
        types = self.types(columns)
        all_formats = spread(formats, len(columns))
        encoding = self.channel.encoding
        texts = encoding.columns(types, all_formats) if encoding.codec else ()

        def datarows(part: ResultBatch) -> bytes | memoryview:
            if not types:
                return _EMPTY_ROW * part.row_count
            rows = part.datarows(types, all_formats, self._reported["TimeZone"])
            return encoding.rows(rows, texts) if texts else rows

        while limit is None or limit > 0:
            batch = yield from self.fetch(result, rows_wanted(result, limit))
            if batch is None:
                return True
            if limit is not None:
                limit -= batch.row_count
            for piece in encoded(batch, datarows):
                self.channel.send_bytes(piece)
            yield from self.channel.relieve(
                at_once=result.row_count == FIRST_ROWS, committed=result.committed
            )
        return False

    def fetch(self, result: Result, wanted: int | None) -> Steps[ResultBatch | None]:
        """The next rows of a result, at most `wanted`; None at its end."""
        if result.elsewhere:
            yield from result.arrive(wanted)
        elif not result.is_ready(wanted):
            yield Need.WORKER
        batch = result.fetch(wanted)
        if batch is None:
            if result.settles:
                yield from result.settled()
            self._take_news()
        elif not result.committed:
            self.channel.check_cancelled()
        return batch

    def complete(self, result: Result, before: int = 0) -> None:
        """Send CommandComplete for a result whose rows have all been sent, `before` of them earlier."""
        tag = result.tag
        assert tag is not None, "an exhausted result has its tag"
        if before:
            tag = f"{tag.rpartition(' ')[0]} {result.row_count - before}"
        if tag in DEALLOCATES_ALL:
            self.prepared.clear()
        self.channel.send_bytes(_completion(tag, self.channel.encoding))
        self.observed.end()

    def answer_error(self, error: Exception) -> Steps[None]:
        """Send ErrorResponse, fail the open block, roll back the implicit transaction."""
        told = yield from self.failed(error)
        self.channel.settle()
        self.channel.send(ErrorResponse(report(told, "ERROR")))
        self.channel.due = True  # At once too, as a client may end its pipeline at an error.

    def failed(self, error: Exception) -> Steps[DucktailError]:
        """Fail the open block, roll back the implicit transaction, and return the error for the client."""
        self.channel.check()
        yield Need.WORKER
        if not isinstance(error, DucktailError):
            told: DucktailError = self.session.as_told(error)
            if isinstance(told, InternalError):
                # Omit the message, which may contain a user's values; only the client receives it.
                parts = format_tb(error.__traceback__)
                frames = [line.strip() for part in parts for line in part.splitlines()]
                about = facts(session=self.session.id, frames=frames)
                log.error("unexpected error in a session: %s", type(error).__name__, extra=about)
            error = told
        self.observed.end(error.sqlstate, unanswered=catalog.unanswered.note(self.observed.text, error))
        self.session.fail()
        yield from self.session.abort_implicit()
        self._take_news()
        return error

    def ready(self) -> None:
        """Send changed parameters, and ReadyForQuery."""
        self._take_news()
        if self._changed:
            for name, value in self._changed.items():
                self.channel.send(ParameterStatus(name, value))
            self._changed.clear()
        self.channel.settle()
        self.tell()
        self.channel.send(ReadyForQuery(self.session.transaction_status))
        self.channel.due = True

    def tell(self) -> None:
        """Send the session's notifications, unless it is in a transaction."""
        if self.session.transaction_status == "I":
            for note in self.session.take_notifications():
                self.channel.send(NotificationResponse(note.pid, note.channel, note.payload))
                self.channel.due = True

    def _take_news(self) -> None:
        if not self.session.has_news:
            return
        for notice in self.session.take_notices():
            fields = (notice.severity, notice.sqlstate, notice.message, notice.detail, notice.hint)
            self.channel.send(NoticeResponse(Report(*fields)))
            self.channel.due = True  # Send at once, as PostgreSQL does: the following work may take long.
        changes = self.session.take_parameter_changes()
        self._changed.update(changes)
        self._reported.update(changes)
        if "client_encoding" in changes:
            self.channel.encoding = ENCODINGS[changes["client_encoding"]]
        if "DateStyle" in changes or "IntervalStyle" in changes:
            self._styles = value_types.Styles.of(self._reported)

    def types(self, columns: Sequence[ResultColumn]) -> list[str]:
        """The types of columns, by which their values are written in the session's styles."""
        types = [column.type for column in columns]
        return types if self._styles is None else list(map(self._styles.type_text, types))


@dataclass(slots=True)
class Prepared:
    """A statement with the description that its client has.

    Args:
        types: DuckDB's names of its parameters' types.
        oids: the OIDs that the client declared or was sent.
        columns: the present columns of its rows; None if it returns none.
        is_told: True if the client has received columns, and relies on them from then on.
        told: the received columns.
        made_us: time of creation, in microseconds since 1970.
    """

    source: StatementText
    statement: ParsedStatement
    types: tuple[str, ...]
    oids: tuple[int, ...]
    columns: Sequence[ResultColumn] | None
    is_told: bool = False
    told: Sequence[ResultColumn] | None = None
    made_us: int = 0

    def tell(self, columns: Sequence[ResultColumn] | None) -> None:
        """Note the columns that the client has received."""
        self.is_told, self.told = True, columns

    def check_told(self, columns: Sequence[ResultColumn] | None) -> None:
        """Check the columns of rows for which the client has not requested a new description.

        Raises:
            CachedPlanChanged: the client would decode them by the columns that it received before.
        """
        if self.is_told and self.told is not columns and _kinds(self.told) != _kinds(columns):
            raise CachedPlanChanged

    @property
    def told_count(self) -> int | None:
        """The number of columns in the last description that the client received; None without one."""
        return len(self.told or ()) if self.is_told else None


def _kinds(columns: Sequence[ResultColumn] | None) -> list[tuple[str, int]] | None:
    """The names and types of columns, as clients use them."""
    return None if columns is None else [(c.name, value_types.pg_type(c.type).oid) for c in columns]


class placed:
    """Context in which error positions refer to the client's text instead of the session's.

    A class, because it is entered for each statement: a generator costs four times as much.
    """

    __slots__ = ("_source",)

    def __init__(self, source: StatementText) -> None:
        self._source = source

    def __enter__(self) -> None:
        """Nothing to do before the statement."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate the position of an error."""
        if not isinstance(error, DucktailError):
            return
        place = self._source.position(error.position)
        if place == error.position:
            return
        # Use a copy: a kept statement may raise the same error again.
        moved = copy(error)
        moved.position = place
        raise moved from error


def check_width(columns: Sequence[ResultColumn] | None) -> None:
    """Refuse rows that no message can hold.

    Raises:
        ProgramLimitExceeded: there are too many columns.
    """
    if columns is not None and len(columns) > COLUMNS_MAX:
        raise ProgramLimitExceeded(f"rows can have at most {COLUMNS_MAX} columns")


def spread(formats: Sequence[int], count: int) -> Sequence[int]:
    """One format for each column, from the formats in Bind: none, one or `count`."""
    if len(formats) == count:
        return formats
    return (formats[0] if formats else 0,) * count


def report(error: DucktailError, severity: str) -> Report:
    """The fields of an error."""
    place = (error.position, error.context, *(error.told_at or ()))
    found = Report(severity, error.sqlstate, error.message, error.detail, error.hint, *place)
    if isinstance(error, IntegrityViolation) and (at := error.violated) is not None:
        found = replace(
            found,
            schema=at.schema,
            table=at.table,
            column=at.column or None,
            constraint=at.constraint or None,
        )
    return found


def _source(offset: int, text: str) -> StatementText:
    respelt = catalog.respelt(text)
    return StatementText(
        offset, text, respelt.text, respelt.types, respelt.parameters, reads_catalog=respelt.reads_catalog
    )


_kept_source = lru_cache(maxsize=KEPT_MAX)(_source)


def _spelling(text: str) -> StatementText:
    """The text of a statement within another one."""
    return _kept_source(0, text) if len(text) <= KEPT_TEXT_CHARS_MAX else _source(0, text)


@lru_cache(maxsize=KEPT_MAX)
def _kept_pieces(text: str) -> Sequence[StatementPiece]:
    return tuple(split_pieces(text))


@lru_cache(maxsize=KEPT_MAX)
def _completion(tag: str, encoding: Encoding) -> bytes:
    return encode(CommandComplete(tag), encoding)


@lru_cache(maxsize=KEPT_MAX)
def _description(columns: tuple[ResultColumn, ...], formats: tuple[int, ...], encoding: Encoding) -> bytes:
    return encode(RowDescription(tuple(map(_field, columns, formats))), encoding)


def _field(column: ResultColumn, format: int) -> Field:
    kind = value_types.pg_type(column.type)
    origin = column.table_oid, column.number
    return Field(column.name, kind.oid, kind.length, kind.modifier, format, *origin)
