"""The simple protocol: one text, any number of statements, one answer after the other.

Several statements in one text share a transaction, unless BEGIN and COMMIT among them say where
it begins and ends. Source: PostgreSQL documentation, "Simple Query", "Multiple Statements in a
Simple Query".
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.errors import DucktailError, SyntaxError_
from ...sql.text.tokens import Piece
from ..codec.backend import EmptyQueryResponse
from ..codec.frontend import Query
from .channel import Need, Steps
from .execution import Work


class Simple:
    """Answers Query messages."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def query(self, message: Query) -> Steps[None]:
        """Run all statements of a Query; without ReadyForQuery, which comes after errors too."""
        self._work.observed.reset(message.text)
        statements = self._work.pieces(message.text)
        if not statements:
            self._work.channel.send(EmptyQueryResponse())
        if len(statements) > 1:
            yield from self._check(statements)
        for number, (text, offset) in enumerate(statements, start=1):
            if len(statements) > 1:
                # Again before each: a COMMIT among them has ended the transaction before it.
                yield from self._work.session.begin_implicit()
            yield from self._run(offset, text, last=1 < number == len(statements))
            # A description may be much longer than the statement that asks for it.
            yield from self._work.channel.relieve()

    def _check(self, statements: Sequence[Piece]) -> Steps[None]:
        """Nothing runs where a later statement cannot be parsed: a COMMIT before it would stand."""
        for text, offset in statements:
            try:
                yield from self._work.parse(text, offset, told=False)
            except SyntaxError_:
                raise
            except DucktailError:
                # It may be about what a statement before it is yet to make; told when its turn comes.
                pass

    def _run(self, offset: int, text: str, *, last: bool) -> Steps[None]:
        work = self._work
        work.observed.reset(text)
        source, statement = yield from work.parse(text, offset, told=False)
        work.observed.found(statement.classified.kind, text)
        if statement.empty:
            work.channel.send(EmptyQueryResponse())
            return
        result = yield from work.execute(source, statement, ())
        try:
            if result.columns is not None:
                work.describe(source, source.columns(result.columns) or (), result.formats)
            yield from work.send_rows(source, result, result.formats)
        except BaseException:
            # Cancelled, or the client is gone: what it has got of the answer does not count.
            result.fail()
            raise
        if last:
            # The last of several is complete once the transaction that they share is.
            yield Need.WORKER
            yield from work.session.commit_implicit()
        work.complete(result)
