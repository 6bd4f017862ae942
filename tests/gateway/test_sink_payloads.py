"""The bodies and headers of webhooks, by envelope."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from ducktail.engine.catalog.sinks import Sink
from ducktail.engine.catalog.streams import Stream
from ducktail.engine.log.events import Event
from ducktail.pgwire_gateway.sinks.payloads import message_of, records_of, signature

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
BIG = "12345678901234567890.123456789"
INSERT = Event(
    5, 1, "insert", "main.t", '{"id":"ä 1"}', None, f'{{"id":"ä 1","v":{BIG}}}', AT, 9, 0, True, 1, None
)
UPDATE = Event(6, 1, "update", "main.t", '{"id":2}', '{"id":2}', "{}", AT, 9, 1, True, 1, '{"a":1}')
DELETE = Event(7, 1, "delete", "main.t", '{"id":2}', None, None, AT, 9, 2, True, 1, None)
EVENTS = (INSERT, UPDATE, DELETE)
STREAM = Stream(
    stream_id=1, schema="main", name="my stream", table_id=2, operations=frozenset({"insert"}),
    columns=("id", "v"), filter=None, partitions=2, partition_by=("id",), snapshot="none", before="full",
    buffer_bytes=1 << 20, created_lsn=0, created_at_us=0,
)  # fmt: skip


def sink(**options: Any) -> Sink:
    """A sink with these options."""
    return Sink(3, "cafe", "webhook", "https://h/", options, {})


def test_events_keep_every_digit() -> None:
    message = message_of(sink(), STREAM, EVENTS)
    assert BIG in message.body.decode()
    first, second, third = json.loads(message.body)
    assert first["key"] == {"id": "ä 1"}
    assert first["commit_time"] == "2026-01-02T03:04:05.678901+00:00"
    assert (first["lsn"], first["partition"], first["op"], first["tx_last"]) == (5, 1, "insert", True)
    assert (second["after"], second["headers"], third["after"]) == ({}, {"a": 1}, None)
    assert list(first) == list(Event._fields)
    assert message.headers == {"content-type": "application/json"}
    assert message.delivery_id == "cafe-5-7-3"


def test_a_batch_of_one_is_an_object() -> None:
    message = message_of(sink(batch=1), STREAM, (INSERT,))
    assert json.loads(message.body)["lsn"] == 5
    assert message.delivery_id == "cafe-5"
    assert json.loads(message_of(sink(batch=2), STREAM, (INSERT,)).body)[0]["lsn"] == 5


def test_some_columns() -> None:
    message = message_of(sink(columns=("after", "lsn")), STREAM, (UPDATE,))
    assert message.body == b'[{"after":{},"lsn":6}]'


def test_changes() -> None:
    rows = json.loads(message_of(sink(envelope="changes", batch=1), STREAM, EVENTS).body)
    assert [row["_change_type"] for row in rows] == [
        "insert", "update_preimage", "update_postimage", "delete",
    ]  # fmt: skip
    assert rows[0]["id"] == "ä 1"
    assert rows[1] == {
        "id": 2, "_change_type": "update_preimage", "_commit_version": 9,
        "_commit_timestamp": "2026-01-02T03:04:05.678901+00:00", "_lsn": 6, "_partition": 1,
    }  # fmt: skip
    assert set(rows[2]) == set(rows[1]) - {"id"}
    assert rows[3]["id"] == 2


@pytest.mark.parametrize(("batch", "kind"), [(1, "cloudevents"), (2, "cloudevents-batch")])
def test_structured_cloudevents(batch: int, kind: str) -> None:
    message = message_of(sink(envelope="cloudevents", batch=batch), STREAM, (INSERT,))
    found = json.loads(message.body)
    event = found if batch == 1 else found[0]
    assert message.headers["content-type"] == f"application/{kind}+json"
    assert {**event, "data": None} == {
        "specversion": "1.0",
        "id": "cafe-5",
        "source": "/ducktail/main/my%20stream",
        "type": "ducktail.insert",
        "time": "2026-01-02T03:04:05.678901+00:00",
        "partition": 1,
        "sequence": "5",
        "subject": '{"id":"ä 1"}',
        "partitionkey": '{"id":"ä 1"}',
        "datacontenttype": "application/json",
        "data": None,
    }
    assert event["data"]["after"]["id"] == "ä 1"


def test_binary_cloudevents() -> None:
    message = message_of(sink(envelope="cloudevents_binary", batch=1), STREAM, (INSERT,))
    assert json.loads(message.body)["lsn"] == 5
    assert message.headers["content-type"] == "application/json"
    assert message.headers["ce-id"] == "cafe-5"
    assert message.headers["ce-specversion"] == "1.0"
    # Space, quotation marks and what is not ASCII are encoded, byte by byte.
    assert message.headers["ce-subject"] == "{%22id%22:%22%C3%A4%201%22}"


def test_signatures_of_two_keys() -> None:
    keys = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
    message = message_of(sink(), STREAM, EVENTS)
    now = int(datetime.now(UTC).timestamp())
    headers = {
        "webhook-id": message.delivery_id,
        "webhook-timestamp": str(now),
        "webhook-signature": signature(keys, message, now),
    }
    for key in keys:
        Webhook(key).verify(message.body.decode(), headers)


def kafka(**options: Any) -> Sink:
    """A Kafka sink with these options."""
    return Sink(3, "cafe", "kafka", "b:9092", {"topic": "t", **options}, {})


def test_a_record_is_one_event() -> None:
    [record] = records_of(kafka(), STREAM, INSERT)
    assert record.key == '{"id":"ä 1"}'.encode()
    assert BIG.encode() in record.value
    assert json.loads(record.value)["lsn"] == 5
    assert record.headers == {"content-type": b"application/json", "ducktail-id": b"cafe-5"}
    [record] = records_of(kafka(key="none", columns=("after", "lsn")), STREAM, UPDATE)
    assert (record.key, record.value) == (None, b'{"after":{},"lsn":6}')


def test_an_update_is_two_records_of_changes() -> None:
    before, after = records_of(kafka(envelope="changes"), STREAM, UPDATE)
    assert json.loads(before.value)["_change_type"] == "update_preimage"
    assert json.loads(after.value)["_change_type"] == "update_postimage"
    assert before.key == after.key == b'{"id":2}'


def test_cloudevents_of_kafka() -> None:
    [record] = records_of(kafka(envelope="cloudevents"), STREAM, INSERT)
    assert record.headers == {"content-type": b"application/cloudevents+json; charset=UTF-8"}
    event = json.loads(record.value)
    assert (event["id"], event["type"], event["data"]["lsn"]) == ("cafe-5", "ducktail.insert", 5)
    [record] = records_of(kafka(envelope="cloudevents_binary"), STREAM, INSERT)
    assert json.loads(record.value)["lsn"] == 5
    assert record.headers["content-type"] == b"application/json"
    assert record.headers["ce_specversion"] == b"1.0"
    assert record.headers["ce_id"] == b"cafe-5"
    assert record.headers["ce_subject"] == record.key
