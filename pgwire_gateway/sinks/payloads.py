"""The requests of webhooks and the records of Kafka: bodies and headers for events of one partition.

The images of an event are JSON texts already, and go into the body as they are: no number loses a digit.

| envelope | body |
|---|---|
| events | an object with the columns of the event, or a list of them if `batch` is above 1 |
| changes | the same with rows as in ENVELOPE CHANGES: an update is two |
| cloudevents | CloudEvents 1.0, structured mode, or its batch mode if `batch` is above 1 |
| cloudevents_binary | CloudEvents 1.0, binary mode: attributes are headers, the body is the event's object |

A record of Kafka has one event, in the same envelopes; the headers of the binary mode begin with `ce_` there.
Source: docs/sinks.md, "Requests" and "Records"; CloudEvents 1.0, "HTTP Protocol Binding", "Kafka Protocol
Binding", "JSON Event Format"; Standard Webhooks, "Signature scheme".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.catalog.sinks import Sink
from ...engine.catalog.streams import Stream
from ...engine.log.events import Event
from ...engine.log.log import EVENT_COLUMNS

JSON, CLOUDEVENT, CLOUDEVENTS = (
    "application/json", "application/cloudevents+json", "application/cloudevents-batch+json",
)  # fmt: skip
# Fields whose values are JSON texts.
_JSON_FIELDS = frozenset(name for name, type_ in EVENT_COLUMNS if type_ == "JSON")
# Characters that CloudEvents encode in a header: all but printable ASCII, and space, " and %.
_ENCODED = re.compile(r"[^\x21\x23\x24\x26-\x7e]")


@dataclass(frozen=True, slots=True)
class Message:
    """One request for some events.

    Args:
        delivery_id: the idempotency key: the same for each attempt, and after a restart.
        headers: its headers without the signature, which has the time of the attempt.
    """

    delivery_id: str
    body: bytes
    headers: dict[str, str]


def message_of(sink: Sink, stream: Stream, events: Sequence[Event]) -> Message:
    """The request for events of one partition, in their order."""
    envelope, single = sink.text("envelope"), sink.integer("batch") == 1
    headers = dict(sink.headers)
    if envelope == "cloudevents_binary":
        (event,) = events
        attributes = _attributes(sink, stream, event)
        headers |= {f"ce-{name}": _encoded(str(value)) for name, value in attributes.items()}
        kind, items = JSON, [_event_text(event, None)]
    elif envelope == "cloudevents":
        kind = CLOUDEVENT if single else CLOUDEVENTS
        items = [_cloudevent(sink, stream, event) for event in events]
    elif envelope == "changes":
        kind, items = JSON, [text for event in events for text in _changes(event)]
        single = False  # An update is two rows.
    else:
        kind, items = JSON, [_event_text(event, sink.names("columns")) for event in events]
    one = single or envelope == "cloudevents_binary"
    body = items[0] if one else f"[{','.join(items)}]"
    headers["content-type"] = kind
    return Message(delivery_id(sink, events), body.encode(), headers)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of Kafka.

    Args:
        key: its key; None without one.
    """

    key: bytes | None
    value: bytes
    headers: dict[str, bytes]


def records_of(sink: Sink, stream: Stream, event: Event) -> list[Record]:
    """The records of an event: one, or two for an update in the envelope of changes."""
    envelope, headers = sink.text("envelope"), {"content-type": JSON}
    if envelope == "cloudevents_binary":
        attributes = _attributes(sink, stream, event)
        headers |= {f"ce_{name}": str(value) for name, value in attributes.items()}
        values = [_event_text(event, None)]
    elif envelope == "cloudevents":
        headers["content-type"] = f"{CLOUDEVENT}; charset=UTF-8"
        values = [_cloudevent(sink, stream, event)]
    else:
        headers["ducktail-id"] = delivery_id(sink, [event])
        values = _changes(event) if envelope == "changes" else [_event_text(event, sink.names("columns"))]
    key = event.key.encode() if event.key is not None and sink.text("key") == "event" else None
    encoded = {name: text.encode() for name, text in headers.items()}
    return [Record(key, value.encode(), encoded) for value in values]


def enveloped(sink: Sink, stream: Stream, event: Event) -> tuple[str, str, dict[str, str | int]]:
    """One event in its envelope: the content type, the body, and the attributes that are not in the body."""
    envelope = sink.text("envelope")
    if envelope == "cloudevents_binary":
        return JSON, _event_text(event, None), _attributes(sink, stream, event)
    if envelope == "cloudevents":
        return CLOUDEVENT, _cloudevent(sink, stream, event), {}
    if envelope == "changes":
        return JSON, f"[{','.join(_changes(event))}]", {}
    return JSON, _event_text(event, sink.names("columns")), {}


def delivery_id(sink: Sink, events: Sequence[Event]) -> str:
    """The idempotency key of a request: its sink, its LSNs and the number of its events."""
    first, last = events[0].lsn, events[-1].lsn
    if len(events) == 1:
        return f"{sink.uid}-{first}"
    return f"{sink.uid}-{first}-{last}-{len(events)}"


def signature(keys: Sequence[str], message: Message, timestamp: int) -> str:
    """The header `webhook-signature`: one for each key, separated by spaces."""
    signed = f"{message.delivery_id}.{timestamp}.".encode() + message.body
    found = []
    for key in keys:
        secret = base64.b64decode(key.partition("_")[2])
        digest = hmac.new(secret, signed, hashlib.sha256).digest()
        found.append(f"v1,{base64.b64encode(digest).decode()}")
    return " ".join(found)


def _event_text(event: Event, columns: Sequence[str] | None) -> str:
    """An event as a JSON object of its columns, or of some of them."""
    names = event._fields if columns is None else columns
    return "{" + ",".join(f'"{name}":{_value_text(event, name)}' for name in names) + "}"


def _value_text(event: Event, name: str) -> str:
    value = getattr(event, name)
    if value is None:
        return "null"
    if name in _JSON_FIELDS:
        return str(value)
    return json.dumps(event.commit_time.isoformat() if name == "commit_time" else value)


def _changes(event: Event) -> list[str]:
    """The rows of an event in ENVELOPE CHANGES, the old image of an update first."""
    if event.op == "update":
        before = [] if event.before is None else [("update_preimage", event.before)]
        images = [*before, ("update_postimage", event.after)]
    elif event.op == "delete":
        images = [("delete", event.before or event.key)]
    else:
        images = [(event.op, event.after)]
    return [_change(event, kind, image) for kind, image in images]


def _change(event: Event, kind: str, image: str | None) -> str:
    fields = (
        f'"_change_type":"{kind}","_commit_version":{event.txid},'
        f'"_commit_timestamp":"{event.commit_time.isoformat()}","_lsn":{event.lsn},'
        f'"_partition":{event.partition}}}'
    )
    columns = (image or "{}").strip()[1:-1]
    return f"{{{columns},{fields}" if columns.strip() else f"{{{fields}"


def _attributes(sink: Sink, stream: Stream, event: Event) -> dict[str, str | int]:
    """The context attributes of an event's CloudEvent; those of its own have lower-case names, as there."""
    found: dict[str, str | int] = {
        "specversion": "1.0",
        "id": f"{sink.uid}-{event.lsn}",
        "source": f"/ducktail/{_path(stream.schema)}/{_path(stream.name)}",
        "type": f"ducktail.{event.op}",
        "time": event.commit_time.isoformat(),
        "partition": event.partition,
        # Of the extension Sequence; an LSN may have more than the 32 bits of an Integer.
        "sequence": str(event.lsn),
    }
    if event.key is not None:
        found["subject"] = event.key
        found["partitionkey"] = event.key
    return found


def _cloudevent(sink: Sink, stream: Stream, event: Event) -> str:
    attributes = {**_attributes(sink, stream, event), "datacontenttype": JSON}
    told = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in attributes.items())
    return f'{{{told},"data":{_event_text(event, None)}}}'


def _path(name: str) -> str:
    """A name as a segment of a URI reference."""
    return re.sub(r"[^A-Za-z0-9._~-]", lambda found: _hex(found[0]), name)


def _encoded(text: str) -> str:
    """A value of a CloudEvents header."""
    return _ENCODED.sub(lambda found: _hex(found[0]), text)


def _hex(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
