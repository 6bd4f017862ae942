"""Messages to bytes: one sample of each message that the server sends."""

from __future__ import annotations

from typing import get_args

import pytest

from ducktail.pgwire_gateway.codec import backend as b
from ducktail.pgwire_gateway.codec import encode

FULL = b.Report("ERROR", "42601", "syntax error", "A detail.", "A hint.", 7, "COPY t")

SAMPLES: list[tuple[b.Message, bytes]] = [
    (b.AuthenticationSasl(("A", "B")), b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0"),
    (b.AuthenticationSaslContinue(b"r=x"), b"R\0\0\0\x0b\0\0\0\x0br=x"),
    (b.AuthenticationSaslFinal(b"v=y"), b"R\0\0\0\x0b\0\0\0\x0cv=y"),
    (b.AuthenticationOk(), b"R\0\0\0\x08\0\0\0\0"),
    (
        b.NegotiateProtocolVersion(0, ("_pq_.x",)),
        b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.x\0",
    ),
    (b.ParameterStatus("TimeZone", "UTC"), b"S\0\0\0\x11TimeZone\0UTC\0"),
    (b.BackendKeyData(7, b"\1\2\3\4"), b"K\0\0\0\x0c\0\0\0\x07\1\2\3\4"),
    (b.ReadyForQuery("I"), b"Z\0\0\0\x05I"),
    (
        b.RowDescription((b.Field("a", 23, 4, -1, 1),)),
        b"T\0\0\0\x1a\0\1a\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\1",
    ),
    (b.ParameterDescription((23, 3_000_000_000)), b"t\0\0\0\x0e\0\2\0\0\0\x17\xb2\xd0\x5e\x00"),
    (b.NoData(), b"n\0\0\0\x04"),
    (b.ParseComplete(), b"1\0\0\0\x04"),
    (b.BindComplete(), b"2\0\0\0\x04"),
    (b.CloseComplete(), b"3\0\0\0\x04"),
    (b.PortalSuspended(), b"s\0\0\0\x04"),
    (b.EmptyQueryResponse(), b"I\0\0\0\x04"),
    (b.CopyInResponse(2), b"G\0\0\0\x0b\0\0\2\0\0\0\0"),
    (b.CopyInResponse(1, binary=True), b"G\0\0\0\x09\1\0\1\0\1"),
    (b.CopyOutResponse(2), b"H\0\0\0\x0b\0\0\2\0\0\0\0"),
    (b.CopyOutDone(), b"c\0\0\0\x04"),
    (b.NotificationResponse(7, "s", "{}"), b"A\0\0\0\x0d\0\0\0\x07s\0{}\0"),
    (b.CommandComplete("SELECT 1"), b"C\0\0\0\x0dSELECT 1\0"),
    (
        b.ErrorResponse(FULL),
        b"E\0\0\0\x47SERROR\0VERROR\0C42601\0Msyntax error\0DA detail.\0HA hint.\0P7\0WCOPY t\0\0",
    ),
    (
        b.NoticeResponse(b.Report("NOTICE", "00000", "é")),
        b"N\0\0\0\x20SNOTICE\0VNOTICE\0C00000\0M\xc3\xa9\0\0",
    ),
]


@pytest.mark.parametrize(("message", "data"), SAMPLES, ids=lambda value: type(value).__name__)
def test_sample(message: b.Message, data: bytes) -> None:
    assert encode(message) == data


def test_every_message_has_a_sample() -> None:
    assert {type(message) for message, _ in SAMPLES} == set(get_args(b.Message))


def test_text_can_break_no_message() -> None:
    """A zero byte would end the string early; a lone surrogate is no UTF-8."""
    assert encode(b.CommandComplete("a\0b")) == b"C\0\0\0\x0aa\xef\xbf\xbdb\0"
    assert encode(b.CommandComplete("\ud800")) == b"C\0\0\0\x06?\0"
