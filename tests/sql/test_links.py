"""A request that is sent twice, because the first answer was lost: what its session is told then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import CannotConnect, ConnectionLost, DucktailError, InvalidParameterValue
from ducktail.engine.placement.node import Node
from ducktail.engine.waiting import run
from ducktail.sql.peers.links import Links
from ducktail.sql.peers.remote import Reply
from ducktail.sql.peers.request import Request
from ducktail.sql.session import Session

THERE = Node("n2", "127.0.0.1", 1)
Answer = Reply | DucktailError


class OneLink:
    """A link that answers what it is told to; a lost one is replaced."""

    node, epoch = THERE, 0

    def __init__(self, answers: Iterator[Answer]) -> None:
        self.lost = False
        self._answers = answers

    def ask(self, request: bytes) -> Future[Reply]:
        """See Link."""
        future: Future[Reply] = Future()
        answer = next(self._answers)
        if isinstance(answer, DucktailError):
            self.lost = isinstance(answer, ConnectionLost)
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def cancel(self, reply: Future[Reply]) -> None:
        """See Link."""

    def release(self) -> None:
        """See Link."""


class OneNode:
    """The other nodes: one, whose connections give the answers one after the other."""

    version = 0

    def __init__(self, database: Database, answers: list[Answer]) -> None:
        self.cluster = database.cluster
        self._answers = iter(answers)

    def link(self, node: Node, user: str | None) -> Future[Any]:
        """See Remote."""
        future: Future[Any] = Future()
        future.set_result(OneLink(self._answers))
        return future


DONE, LOST = Reply((b"",)), ConnectionLost("lost")
REFUSED = InvalidParameterValue("offset going back")


@pytest.mark.parametrize(
    ("second", "changes", "told"),
    [
        (DONE, True, None),
        # It may have been done the first time, and be refused for that.
        (REFUSED, True, "08006"),
        (REFUSED, False, "22023"),
        (CannotConnect("away"), True, "08006"),
        (ConnectionLost("again"), True, "08006"),
    ],
)
def test_what_a_second_answer_means(second: Answer, changes: bool, told: str | None) -> None:
    database = Database.open(":memory:")
    session = Session(database)
    try:
        remote = cast(Any, OneNode(database, [DONE, LOST, second]))
        links = Links(remote, None, "trace")

        def ask() -> str | None:
            try:
                run(links.ask(session, THERE, Request("execute"), again=True, changes=changes))
            except DucktailError as error:
                return error.sqlstate
            return None

        assert ask() is None
        assert ask() == told
    finally:
        run(session.close())
        database.close()
