"""Events in frames between nodes: the same on the other side, with their places and without."""

from __future__ import annotations

import struct

import pytest

from ducktail.sql.peers.peer_frames import PassedBatch, batch_frame, batch_of
from ducktail.sql.results.results import EventBatch

TEXTS = (0,) * 13


def row(*values: bytes) -> bytes:
    """A DataRow message."""
    body = b"".join(struct.pack("!i", len(value)) + value for value in values)
    return struct.pack("!cih", b"D", len(body) + 6, len(values)) + body


ROWS = [row(str(n).encode(), b"x" * n) for n in range(5)]
EVENTS = EventBatch(ROWS, [7, 8, 8, 11, 12], [0, 1, 1, 0, 3], types=("BIGINT", "VARCHAR"))


def sent(*, placed: bool) -> PassedBatch:
    found = batch_of(batch_frame(EVENTS, placed=placed))
    assert isinstance(found, PassedBatch)
    return found


def test_events_that_are_placed_come_with_their_lsns_and_partitions() -> None:
    found = sent(placed=True)
    assert (list(found.lsns), list(found.partitions)) == (EVENTS.lsns, EVENTS.partitions)
    assert list(found.sizes) == [len(one) for one in ROWS]
    assert found.events() == EVENTS


@pytest.mark.parametrize("placed", [True, False])
def test_the_messages_are_given_on_as_they_are(placed: bool) -> None:
    found = sent(placed=placed)
    assert found.row_count == len(ROWS)
    assert bytes(found.datarows(("BIGINT", "VARCHAR"), TEXTS[:2], "UTC")) == b"".join(ROWS)


def test_dates_get_the_style_of_the_session() -> None:
    events = EventBatch([row(b"1", b"2026-01-31")], [7], [0], types=("BIGINT", "DATE"))
    found = batch_of(batch_frame(events, placed=False))
    assert bytes(found.datarows(("BIGINT", "DATE"), TEXTS[:2], "UTC")) == row(b"1", b"2026-01-31")
    assert bytes(found.datarows(("BIGINT", "DATE GERMAN"), TEXTS[:2], "UTC")) == row(b"1", b"31.01.2026")


@pytest.mark.parametrize("placed", [True, False])
def test_they_are_taken_apart_where_that_is_asked_for(placed: bool) -> None:
    found = sent(placed=placed)
    cut = found.cut(1, 3)
    assert isinstance(cut, EventBatch)
    assert cut.rows == ROWS[1:4]
    assert found.events().rows == ROWS
    turned = found.turned()
    assert isinstance(turned, EventBatch)
    assert turned.rows == ROWS[::-1]


def test_those_that_are_only_given_on_come_without_places() -> None:
    with_places, without = (batch_frame(EVENTS, placed=placed) for placed in (True, False))
    assert len(with_places) - len(without) == len(ROWS) * (8 + 4 + 4) + len(',"placed":true')
