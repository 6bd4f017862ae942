"""Sinks to streams of RabbitMQ: their messages, and which publisher sends each.

A message is one event in AMQP 1.0, which is what RabbitMQ's clients expect in a stream:

| section | content |
|---|---|
| properties | message-id: the sink and the LSN; content-type |
| application properties | lsn, partition, op; in the binary mode of CloudEvents its attributes |
| data | the event in its envelope |

An event goes through the publisher of its partition and its incarnation, with its LSN as publishing id. A
database that was made from a backup thus delivers the events of the backup under the ids that they had, and
its own ones under another reference. Released events, which have a lower LSN than events that the broker has,
go through a publisher without reference.
Source: docs/sinks.md, "RabbitMQ streams"; CloudEvents 1.0, "AMQP Protocol Binding".
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from rstream import AMQPMessage, Properties

from ...engine.catalog.rabbitmq_url import parsed
from ...engine.catalog.sinks import PASSWORD, STREAM, USERNAME, Sink
from ...engine.catalog.streams import Stream
from ...engine.database import Database
from ...engine.groups.parked import NOTHING, RELEASED
from ...engine.log.events import Event
from ...engine.networks import Network, refusal
from ...engine.storage.incarnation import incarnation_of
from .payloads import delivery_id, enveloped
from .rabbitmq_client import AnotherCopy, NotConfirmed, RabbitmqStream, StreamMessage, TooLarge
from .target import Answer, Moment, StopSink

# RabbitMQ's own default, which it accepts from its own host only.
DEFAULT_USER = "guest"
# The prefix of CloudEvents' attributes among the application properties.
CLOUDEVENTS_PREFIX = "cloudEvents:"


class RefusedAddress(OSError):
    """An address to which no sink may connect."""


class RabbitmqTarget:
    """The publishers of one sink, in a running event loop.

    Args:
        allowed: networks to which it may connect although they are not public.
    """

    keeps_positions = False

    def __init__(self, database: Database, sink: Sink, allowed: Sequence[Network]) -> None:
        self._database = database
        self._place = _place(sink)
        found = parsed(sink.target)
        assert found is not None, "the statement has accepted it"
        self._url = found[0]
        self._allowed = allowed
        credentials = sink.secrets.get(USERNAME, DEFAULT_USER), sink.secrets.get(PASSWORD, DEFAULT_USER)
        self._client = RabbitmqStream(
            self._url,
            credentials,
            sink.text(STREAM),
            sink.uid,
            self._judge,
            self._last_lsn,
            sink.text_or_none("ssl_ca"),
        )
        # Partition -> the last publishing id below which events may have been released; see `_released`.
        self._floors: dict[int, int] = {}

    def _last_lsn(self) -> int:
        return self._database.commits.last_lsn

    def _judge(self, place: tuple[object, ...]) -> None:
        reason = refusal(str(place[0]), self._allowed, encrypted=self._url.tls)
        if reason is not None:
            raise RefusedAddress(reason)

    def fits(self, sink: Sink) -> bool:
        """True if the sink has the same brokers, stream and user."""
        return self._place == _place(sink)

    async def open(self, committed: Mapping[int, int], seeks: int) -> Mapping[int, int]:
        """Nothing: the connection is made with the first messages."""
        return {}

    async def deliver(self, sink: Sink, stream: Stream, events: Sequence[Event], at: Moment) -> Answer:
        """Store events in the stream, and wait until the broker has confirmed them.

        Raises:
            StopSink: another copy of the database delivers to the stream.
        """
        partition, timeout_s = events[0].partition, sink.integer("timeout") / 1000
        try:
            released = await self._released(sink, partition, events, at, timeout_s)
            messages = {event.lsn: _message(sink, stream, event) for event in events}
            self._client.check_sizes(messages.values())
            runs = itertools.groupby(
                events, lambda event: None if event.lsn in released else incarnation_of(event.lsn)
            )
            for incarnation, run in runs:
                part = [messages[event.lsn] for event in run]
                if incarnation is None:
                    await self._client.publish_released(part, timeout_s)
                else:
                    await self._client.publish(incarnation, partition, part, timeout_s)
        except NotConfirmed as error:
            return Answer(None, str(error), reached=False)
        except TooLarge as error:
            return Answer(None, str(error), refused=True)
        except AnotherCopy as error:
            raise StopSink(str(error)) from error
        return Answer(None, "", accepted=True)

    async def _released(
        self, sink: Sink, partition: int, events: Sequence[Event], at: Moment, timeout_s: float
    ) -> Collection[int]:
        """The LSNs of released events, of which the broker may have later ones.

        After a crash, events that the broker has are read again, as their LSNs are not committed. If events
        were released meanwhile, those set aside behind them cannot be distinguished from such events: all up
        to the broker's last publishing id are sent again then, because none may be lost.
        """
        rows = (self._database.parked.get(sink.group_id) or NOTHING).of(RELEASED, partition)
        if rows:
            last = await self._client.last_id(incarnation_of(events[-1].lsn), partition, timeout_s)
            self._floors[partition] = max(last, self._floors.get(partition, 0))
        floor = max(at.committed_lsn, self._floors.get(partition, 0))
        lsns = {row.lsn for row in rows}
        return {event.lsn for event in events if event.lsn <= floor or event.lsn in lsns}

    async def close(self) -> None:
        """End the connection."""
        await self._client.close()


def _place(sink: Sink) -> tuple[str, ...]:
    """The part of a definition that needs another connection."""
    secrets = (sink.secrets.get(name, "") for name in (USERNAME, PASSWORD))
    return sink.target, sink.text(STREAM), sink.text_or_none("ssl_ca") or "", *secrets


def _message(sink: Sink, stream: Stream, event: Event) -> StreamMessage:
    kind, body, attributes = enveloped(sink, stream, event)
    own: dict[str, str | int] = {"lsn": event.lsn, "partition": event.partition, "op": event.op}
    own |= {f"{CLOUDEVENTS_PREFIX}{name}": value for name, value in attributes.items()}
    message = AMQPMessage(
        properties=Properties(message_id=delivery_id(sink, [event]), content_type=kind),
        application_properties=own,
        body=body.encode(),
    )
    return StreamMessage(event.lsn, bytes(message))
