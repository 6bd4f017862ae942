"""The startup packet's parameters, and where an error stands in the client's text."""

from __future__ import annotations

import pytest

from ducktail.engine.errors import DucktailError
from ducktail.pgwire_gateway.codec.frontend import Startup
from ducktail.pgwire_gateway.conversation.startup import read_options, read_startup
from ducktail.pgwire_gateway.conversation.statement_text import StatementText


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", []),
        ("  ", []),
        ("-c a=1", [("a", "1")]),
        ("-ca=1  -c b=x", [("a", "1"), ("b", "x")]),
        ("--lock-timeout=5", [("lock_timeout", "5")]),
        (r"-c search_path=a,\ b", [("search_path", "a, b")]),
        (r"-c a=\\", [("a", "\\")]),
        ("-c a=b=c", [("a", "b=c")]),
        ("-c a=", [("a", "")]),
    ],
)
def test_options(text: str, settings: list[tuple[str, str]]) -> None:
    assert read_options(text) == settings


@pytest.mark.parametrize("text", ["-x", "a=1", "-c", "-c a", "-c =1", "--a", "-B 10"])
def test_options_that_are_none(text: str) -> None:
    with pytest.raises(DucktailError) as caught:
        read_options(text)
    assert caught.value.sqlstate == "42601"


def test_later_settings_win_and_ours_are_no_settings() -> None:
    entry = read_startup(
        Startup(
            3,
            0,
            (
                ("user", "ann"),
                ("options", "-c TimeZone=UTC -c application_name=from_options"),
                ("TimeZone", "Asia/Tokyo"),
                ("client_encoding", "'utf-8'"),
                ("replication", "off"),
            ),
        )
    )
    assert entry.settings == {"TimeZone": "Asia/Tokyo", "client_encoding": "'utf-8'"}
    assert (entry.database, entry.application_name) == ("ann", "from_options")
    assert not entry.negotiates


TEXT = "SELECT oid::regclass, nowhere FROM pg_class"
REWRITTEN = "SELECT pgc.regclass(oid), nowhere FROM pg_class"


@pytest.mark.parametrize(
    ("token", "found"),
    [("SELECT", "SELECT"), ("nowhere", "nowhere"), ("pg_class", "pg_class"), ("regclass(", None)],
)
def test_a_place_before_or_after_what_was_spelt_anew_is_known(token: str, found: str | None) -> None:
    source = StatementText(100, TEXT, REWRITTEN)
    place = source.position(REWRITTEN.index(token) + 1)
    assert place == (None if found is None else 100 + TEXT.index(found) + 1)


def test_no_place_stays_none() -> None:
    assert StatementText(10, TEXT, TEXT).position(None) is None
    assert StatementText(10, TEXT, TEXT).position(1) == 11
