"""Requests whose answers do not come: sent twice, or cancelled when they may be done already."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    InvalidParameterValue,
    QueryCanceled,
    WrongState,
)
from ducktail.engine.placement.peer import Peer
from ducktail.engine.placement.placement import Node
from ducktail.engine.waiting import drive
from ducktail.sql.peers.links import Links
from ducktail.sql.peers.remote import Reply
from ducktail.sql.peers.requests import Request
from ducktail.sql.session import Session

THERE = Node("n2", "127.0.0.1", 1)
Answer = Reply | DucktailError


class OneLink:
    """A link that answers what it is told to; a lost one is replaced."""

    node, epoch = THERE, 0

    def __init__(self, answers: Iterator[Answer]) -> None:
        self.lost = False
        self.asked: list[Request] = []
        self._answers = answers

    def ask(self, request: bytes) -> Future[Reply]:
        """See Link."""
        future: Future[Reply] = Future()
        self.asked.append(Request.decode(request))
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
        self.links: list[OneLink] = []

    def link(self, node: Node, user: str | None) -> Future[Any]:
        """See Remote."""
        future: Future[Any] = Future()
        self.links.append(OneLink(self._answers))
        future.set_result(self.links[-1])
        return future


def linked(session: Session, remote: OneNode) -> Links:
    """The session's links to the one node."""
    session.reach(cast(Any, remote), "trace")
    assert session.links is not None
    return session.links


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
        remote = OneNode(database, [DONE, LOST, second])
        links = linked(session, remote)

        def ask() -> str | None:
            try:
                drive(links.ask(THERE, Request("execute"), again=True, changes=changes))
            except DucktailError as error:
                return error.sqlstate
            return None

        assert ask() is None
        assert ask() == told
    finally:
        drive(session.close())
        database.close()


def test_a_cancelled_request_is_told_to_count_for_nothing() -> None:
    """Its answer may be on its way when the cancel comes."""
    database = Database.open(":memory:")
    session = Session(database)
    try:
        remote = OneNode(database, [DONE, DONE])
        asking = linked(session, remote).ask(THERE, Request("execute", portal=3))
        next(asking)  # The link.
        asking.send(None)
        with pytest.raises(QueryCanceled):
            asking.throw(QueryCanceled("canceling statement due to user request"))
        assert [(one.op, one.portal) for one in remote.links[0].asked] == [("execute", 3), ("failed", 3)]
    finally:
        drive(session.close())
        database.close()


@pytest.mark.parametrize("more", ["", "MEMBER 'm'", "LIMIT 2", "MEMBER 'm' LIMIT 2"])
def test_an_answer_that_its_client_did_not_get_is_no_read_position(more: str) -> None:
    """Whether it has been given whole or is still to be fetched."""
    database = Database.open(":memory:")
    session = Session(database, wire=True)
    peer = Session(database, peer=Peer("n1", "shop", 0), wire=True)

    def sent(op: str, portal: int, text: str = "") -> list[bytes]:
        statement = drive(peer.parse("FORWARD $1", (17,)))
        result = drive(peer.execute(statement, (Request(op, text, portal=portal).encode(),)))
        batch = result.fetch(None)
        assert batch is not None or op == "failed"
        assert result.fetch(None) is None
        return [] if batch is None else batch.record_batch().column(0).to_pylist()

    read = f"SELECT lsn FROM STREAM s CONSUMER GROUP g {more}"
    commit = f"COMMIT OFFSETS ON s CONSUMER GROUP g {more.removesuffix('LIMIT 2')}"
    try:
        for text in (
            "CREATE TABLE t (id INTEGER PRIMARY KEY)",
            "CREATE STREAM s ON t",
            "INSERT INTO t VALUES (1), (2)",
            "CREATE CONSUMER GROUP g ON s START EARLIEST",
        ):
            drive(session.execute(drive(session.parse(text))))
        sent("execute", 1, read)
        sent("failed", 1)
        with pytest.raises(WrongState, match="failed or was cancelled"):
            sent("execute", 2, commit)
        sent("execute", 3, read.removesuffix("LIMIT 2") + " LIMIT 2")
        sent("failed", 4)  # Another one.
        sent("execute", 5, commit)
    finally:
        drive(peer.close())
        drive(session.close())
        database.close()
