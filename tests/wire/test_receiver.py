"""Bytes to messages: every sample whole, byte by byte and with others behind it; every bound."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ducktail.pgwire_gateway.codec import Receiver
from ducktail.pgwire_gateway.codec import frontend as f
from ducktail.pgwire_gateway.codec.frontend import Limits

BYTES_MAX = Limits().unauthenticated_bytes_max


@pytest.fixture
def receiver(written: Any) -> Receiver:
    """A receiver whose client has been let in."""
    receiver = Receiver()
    assert isinstance(receiver.receive(written.startup())[0], f.Startup)
    receiver.authenticated = True
    return receiver


def sqlstate(messages: list[f.Message]) -> str:
    (message,) = messages
    assert isinstance(message, f.Malformed)
    return message.error.sqlstate


def test_every_message_type_has_a_sample(samples: Any) -> None:
    assert {format.kind for format in f.FORMATS.values()} == {
        type(message) for _, message in samples.values()
    }


def test_each_sample_whole(receiver: Receiver, samples: Any) -> None:
    for data, message in samples.values():
        assert receiver.receive(data) == [message]


def test_each_sample_byte_by_byte(receiver: Receiver, samples: Any) -> None:
    for data, message in samples.values():
        for at in range(len(data) - 1):
            assert receiver.receive(data[at : at + 1]) == []
        assert receiver.receive(data[-1:]) == [message]


def test_all_samples_at_once_and_half_of_another(receiver: Receiver, samples: Any) -> None:
    whole = b"".join(data for data, _ in samples.values())
    more = samples["parse"][0]
    assert receiver.receive(whole + more[:7]) == [message for _, message in samples.values()]
    assert receiver.receive(more[7:]) == [samples["parse"][1]]


def test_a_sample_with_a_byte_too_many_or_too_few_in_its_body_is_malformed(
    samples: Any, written: Any
) -> None:
    # What has no fields that we read takes any body.
    unread = (f.CopyData, f.FunctionCall, f.Password)
    for name, (data, message) in samples.items():
        if isinstance(message, unread):
            continue
        for body in (data[5:] + b"x", data[5:-1]):
            if body == data[5:]:
                continue
            receiver = Receiver()
            receiver.receive(written.startup())
            wrong = data[:1] + struct.pack("!i", len(body) + 4) + body
            assert sqlstate(receiver.receive(wrong)) == "08P01", name


def test_nothing_is_read_after_malformed_bytes(receiver: Receiver, samples: Any) -> None:
    good = samples["query"][0]
    assert sqlstate(receiver.receive(b"\x01" + good)) == "08P01"
    assert receiver.receive(good) == []


@pytest.mark.parametrize("length", [-1, 0, 3, f.SMALL_BYTES_MAX + 1])
def test_a_length_out_of_bounds_is_malformed_before_its_body_has_come(
    receiver: Receiver, length: int
) -> None:
    assert sqlstate(receiver.receive(b"S" + struct.pack("!i", length))) == "08P01"


def test_large_messages_are_for_clients_that_are_in(written: Any) -> None:
    receiver = Receiver()
    receiver.receive(written.startup())
    large = written.query("x" * BYTES_MAX)
    assert sqlstate(receiver.receive(large[:5])) == "08P01"
    receiver = Receiver()
    receiver.receive(written.startup())
    receiver.authenticated = True
    assert len(receiver.receive(large)) == 1
    assert sqlstate(receiver.receive(b"Q" + struct.pack("!i", f.LARGE_BYTES_MAX + 1))) == "08P01"


def test_text_that_is_no_utf8_fails_alone(receiver: Receiver, written: Any, samples: Any) -> None:
    for kind, body, where in ((f.Query, b"select '\xff'\0", "Q"), (f.Parse, b"\xc3\0select\0\0\0", "P")):
        message, following = receiver.receive(written.message(where, body) + samples["sync"][0])
        assert isinstance(message, f.Undecodable)
        assert (message.kind, message.error.sqlstate, following) == (kind, "22021", f.Sync())


def test_startup_packets(written: Any) -> None:
    for code, kind in ((f.SSL_REQUEST_CODE, f.SslRequest), (f.GSSENC_REQUEST_CODE, f.GssEncRequest)):
        receiver = Receiver()
        assert receiver.receive(written.packet(code)) == [kind()]
        (startup,) = receiver.receive(written.startup(application_name="é"))
        assert startup == f.Startup(
            3, 0, (("user", "ann"), ("database", "ducktail"), ("application_name", "é"))
        )
    packet = written.packet(f.CANCEL_REQUEST_CODE, struct.pack("!i", 7), b"\1\2\3\4")
    receiver = Receiver()
    assert [receiver.receive(packet[at : at + 1]) for at in range(len(packet))][-1] == [
        f.CancelRequest(7, b"\1\2\3\4")
    ]


def test_another_major_version_is_told_from_garbage(written: Any) -> None:
    assert Receiver().receive(written.packet(2 << 16, b"anything")) == [f.Startup(2, 0, ())]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!i", 7),
        struct.pack("!i", -1),
        struct.pack("!i", BYTES_MAX + 1),
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["too short", "negative", "too long", "http", "tls"],
)
def test_garbage_at_the_door(data: bytes) -> None:
    assert sqlstate(Receiver().receive(data)) == "08P01"


@pytest.mark.parametrize("body", [b"", b"user\0", b"user\0ann\0", b"user\0ann\0\0more", b"user"])
def test_startup_parameters_that_are_no_pairs(written: Any, body: bytes) -> None:
    assert sqlstate(Receiver().receive(written.packet(3 << 16, body))) == "08P01"


def test_bytes_behind_an_ssl_request_are_not_read(written: Any) -> None:
    """CVE-2021-23214: they were put there by someone between client and server."""
    messages = Receiver().receive(written.packet(f.SSL_REQUEST_CODE) + written.startup())
    assert sqlstate(messages) == "08P01"
