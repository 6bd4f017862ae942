"""The startup packet: who comes, to which database, with which settings.

Source: PostgreSQL documentation, "Start-up" and "StartupMessage".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.errors import (
    InvalidAuthorization,
    InvalidParameterValue,
    NotSupported,
    SyntaxError_,
)
from ...engine.placement.peer import PEER_SETTINGS, Peer, read_peer
from ...engine.rights.scram import Verifier
from ..codec.frontend import Startup

MAJOR = 3
# 3.2 differs from 3.0 in the length of cancel keys; there has never been a 3.1. Who asks for more is told.
MINOR = 2
SHORT_KEY_BYTES, LONG_KEY_BYTES = 4, 32

# How clients spell the one encoding that there is; asyncpg sends it in quotes.
UTF8_NAMES = frozenset({"utf8", "utf-8", "unicode"})
NO = frozenset({"false", "off", "no", "0"})
# Consumed here; every other parameter is a setting of the session.
OURS = frozenset({"user", "database", "application_name", "client_encoding", "options", "replication"})
PROTOCOL_OPTION = "_pq_."


@dataclass(frozen=True, slots=True)
class Entry:
    """A client that wants in.

    Args:
        settings: what the session shall start with, by setting name.
        protocol_options: `_pq_.` options, none of which we know.
        minor: the minor version that is spoken.
        newer: whether a newer one than ours was asked for.
        peer: the node of a cluster that the client is; None: it is none.
    """

    user: str
    database: str
    application_name: str
    settings: Mapping[str, str]
    protocol_options: tuple[str, ...]
    minor: int
    newer: bool
    peer: Peer | None = None

    @property
    def key_bytes(self) -> int:
        """How long its cancel key is."""
        return LONG_KEY_BYTES if self.minor >= MINOR else SHORT_KEY_BYTES

    @property
    def negotiates(self) -> bool:
        """Whether NegotiateProtocolVersion is the first answer."""
        return self.newer or bool(self.protocol_options)


@dataclass(frozen=True, slots=True)
class Door:
    """How a client may come in.

    Args:
        account: the user's name as he was made; None is the database's owner, let in without a password.
        verifier: what his password is held against; None asks for none.
        known: whether there is such a user; he who is not there is asked all the same.
        nonce: the server's half of the exchange's.
    """

    account: str | None = None
    verifier: Verifier | None = None
    known: bool = True
    nonce: str = ""


def read(startup: Startup) -> Entry:
    """What a startup packet asks for.

    Raises:
        NotSupported: 0A000, another major version, or a replication connection.
        InvalidAuthorization: 28000, no user.
        InvalidParameterValue: 22023, an encoding that is not UTF8, or half of what a node says.
        SyntaxError_: 42601, `options` that are not settings.
    """
    if startup.major != MAJOR:
        raise NotSupported(
            f"unsupported frontend protocol {startup.major}.{startup.minor}: server supports {MAJOR}.{MINOR}"
        )
    sent = dict(startup.parameters)
    user = sent.get("user", "")
    if not user:
        raise InvalidAuthorization("no user name specified in startup packet")
    _refuse_replication(sent.get("replication", "false"))
    check_encoding(sent.get("client_encoding", "UTF8"))
    settings = dict(read_options(sent.get("options", "")))
    for name, value in sent.items():
        if name not in OURS and not name.startswith(PROTOCOL_OPTION):
            settings[name] = value
    if "client_encoding" in settings:
        check_encoding(settings.pop("client_encoding"))
    said = {name.lower(): settings.pop(name) for name in list(settings) if name.lower() in PEER_SETTINGS}
    return Entry(
        user=user,
        database=sent.get("database") or user,
        application_name=settings.pop("application_name", sent.get("application_name", "")),
        settings=settings,
        protocol_options=tuple(name for name in sent if name.startswith(PROTOCOL_OPTION)),
        minor=min(startup.minor, MINOR),
        newer=startup.minor > MINOR,
        peer=read_peer(said),
    )


def check_encoding(value: str) -> None:
    """Refuse a client_encoding other than UTF8 (22023)."""
    if value.strip("'\" ").lower() not in UTF8_NAMES:
        raise InvalidParameterValue(
            f'invalid value for parameter "client_encoding": "{value}"', hint="The only encoding is UTF8."
        )


def _refuse_replication(value: str) -> None:
    if value.lower() not in NO:
        raise NotSupported(
            "replication connections are not supported",
            hint="Read a stream with SELECT ... FROM STREAM.",
        )


def read_options(text: str) -> list[tuple[str, str]]:
    """The settings in `options`: `-c name=value`, `-cname=value` and `--name=value`.

    A backslash keeps the character after it, a space included.
    """
    settings = []
    words = iter(_words(text))
    for word in words:
        if word == "-c":
            setting = next(words, "")
        elif word.startswith("--"):
            # As PostgreSQL does: dashes in a long option's name stand for underscores.
            name, equals, value = word[2:].partition("=")
            setting = name.replace("-", "_") + equals + value
        elif word.startswith("-c"):
            setting = word[2:]
        else:
            raise SyntaxError_(f"invalid command-line argument for server process: {word}")
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise SyntaxError_(f"-c {setting} requires a value")
        settings.append((name, value))
    return settings


def _words(text: str) -> list[str]:
    words: list[str] = []
    word: list[str] | None = None
    characters = iter(text)
    for character in characters:
        if character.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        word.append(next(characters, "") if character == "\\" else character)
    if word is not None:
        words.append("".join(word))
    return words
