"""Which way in is open for whom, without a network."""

from __future__ import annotations

import pytest

from ducktail.engine.catalog.passwords import make_verifier
from ducktail.engine.catalog.rights import Rights, User
from ducktail.engine.errors import InvalidAuthorization
from ducktail.pgwire_gateway.conversation import Entry
from ducktail.pgwire_gateway.server.admission import door_for, is_loopback

ANN = User("Ann", make_verifier("x", b"salt"), superuser=True)
NOBODY = Rights()
SOME = Rights({"ann": ANN}, nonce=b"n" * 32)


def entry(user: str) -> Entry:
    return Entry(user, "ducktail", "", {}, (), 0, False)


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("0.0.0.0", False),
        ("", False),
    ],
)  # fmt: skip
def test_what_is_near(address: str, near: bool) -> None:
    assert is_loopback(address) is near


def test_trust_is_for_those_who_are_near_while_nobody_is_there() -> None:
    assert door_for(NOBODY, entry("eve"), near=True, secured=False).verifier is None
    for secured in (False, True):
        with pytest.raises(InvalidAuthorization):
            door_for(NOBODY, entry("ann"), near=False, secured=secured)


def test_with_users_everybody_is_asked() -> None:
    for near, secured in ((True, False), (True, True), (False, True)):
        door = door_for(SOME, entry("ANN"), near=near, secured=secured)
        assert (door.account, door.verifier, door.known) == ("Ann", ANN.verifier, True)
        stranger = door_for(SOME, entry("eve"), near=near, secured=secured)
        assert stranger.account is None and stranger.verifier is not None and not stranger.known
        assert stranger.nonce != door.nonce and len(door.nonce) >= 18
    with pytest.raises(InvalidAuthorization, match="TLS"):
        door_for(SOME, entry("ann"), near=False, secured=False)


def test_a_stranger_is_asked_in_the_same_words_each_time() -> None:
    first, again = (door_for(SOME, entry("eve"), near=True, secured=False).verifier for _ in range(2))
    assert first == again
