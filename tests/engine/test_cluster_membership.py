"""Which placements a node takes, and what it remembers of them over a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import (
    ConnectionRefused,
    DucktailError,
    InvalidParameterValue,
    IoError,
    SerializationFailure,
    UndefinedGroup,
)
from ducktail.engine.placement.membership import INSTALLED, REFUSED
from ducktail.engine.placement.placement import LocalPlacement, Node
from ducktail.sql.peers.remote import still_missing

N1, N2 = Node("n1", "127.0.0.1", 1), Node("n2", "127.0.0.1", 2)
THIRD = LocalPlacement(N1, 3, "shop", "a")


@dataclass(frozen=True, slots=True)
class Case:
    """A placement that is refused after THIRD."""

    placement: LocalPlacement
    error: type[DucktailError]


REFUSED_CASES = {
    "older": Case(replace(THIRD, epoch=2), SerializationFailure),
    "another of the same epoch": Case(replace(THIRD, digest="b"), InvalidParameterValue),
    "another cluster's": Case(replace(THIRD, epoch=4, cluster="store"), ConnectionRefused),
    "another node's": Case(replace(THIRD, epoch=4, local=N2), InvalidParameterValue),
}


def test_a_database_alone_owns_everything() -> None:
    database = Database.open(":memory:")
    try:
        assert database.placement.epoch == 0
        assert database.placement.owner("main", "s", 7) is database.placement.local
        assert database.placement.home("main", "s") is database.placement.local
    finally:
        database.close()


@pytest.mark.parametrize("name", REFUSED_CASES)
def test_what_is_refused(name: str) -> None:
    case = REFUSED_CASES[name]
    database = Database.open(":memory:")
    try:
        database.install_placement(THIRD)
        with pytest.raises(case.error):
            database.install_placement(case.placement)
        assert database.placement is THIRD
        counts = database.cluster.counts()
        assert (counts[INSTALLED, "", ""], counts[REFUSED, "", ""]) == (1, 1)
    finally:
        database.close()


@pytest.mark.parametrize("name", [name for name in REFUSED_CASES if name != "another node's"])
def test_it_is_refused_after_a_restart_too(name: str, tmp_path: Path) -> None:
    case, path = REFUSED_CASES[name], str(tmp_path / "a.duckdb")
    database = Database.open(path)
    database.install_placement(replace(THIRD, epoch=1))
    database.install_placement(THIRD)
    database.close()
    database = Database.open(path)
    try:
        with pytest.raises(case.error):
            database.install_placement(case.placement)
        assert database.placement.epoch == 0
        database.install_placement(THIRD)
        assert database.placement.epoch == 3
    finally:
        database.close()


def test_the_same_again_is_nothing() -> None:
    database = Database.open(":memory:")
    try:
        database.install_placement(THIRD)
        database.install_placement(replace(THIRD))
        assert database.cluster.counts()[INSTALLED, "", ""] == 1
    finally:
        database.close()


def test_a_newer_epoch_that_was_heard_makes_it_stale() -> None:
    database = Database.open(":memory:")
    try:
        database.install_placement(THIRD)
        database.cluster.heard(3)
        assert not database.cluster.stale
        database.cluster.heard(5)
        database.cluster.heard(4)
        assert database.cluster.stale
        assert database.cluster.newest_epoch == 5
        database.install_placement(replace(THIRD, epoch=5))
        assert not database.cluster.stale
    finally:
        database.close()


class Left(LocalPlacement):
    """A placement that has only the other node."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (N2,)


def test_a_node_that_has_left_does_not_know_what_there_is() -> None:
    database = Database.open(":memory:")
    missing = UndefinedGroup('consumer group "g" does not exist')
    try:
        database.install_placement(THIRD)
        database.cluster.learnt(THIRD.epoch)
        assert still_missing(database.cluster, missing) is missing
        database.install_placement(Left(N1, 4, "shop", "b"))
        assert database.cluster.has_left and not database.cluster.lacks
        assert isinstance(still_missing(database.cluster, missing), ConnectionRefused)
    finally:
        database.close()


def test_where_the_password_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    assert N1.password({}) is None
    assert replace(N1, password_file=str(file)).password({}) == "secret"
    assert replace(N1, password_env="P").password({"P": "other"}) == "other"
    with pytest.raises(InvalidParameterValue, match="P in the environment"):
        replace(N1, password_env="P").password({})
    with pytest.raises(IoError, match=r"password file of node \"n1\""):
        replace(N1, password_file=str(tmp_path / "none")).password({})


def test_the_first_database_of_a_name_is_the_one(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "n1.duckdb"))
    try:
        database.install_placement(THIRD)
        first = database.cluster.identity
        with ThreadPoolExecutor(8) as pool:  # Several connections may be the first.
            list(pool.map(lambda _: database.cluster.meet("n2", "one"), range(8)))
        database.cluster.meet("n2", "")  # It does not say.
    finally:
        database.close()
    database = Database.open(str(tmp_path / "n1.duckdb"))
    try:
        database.install_placement(THIRD)
        assert database.cluster.identity == first
        database.cluster.meet("n2", "one")
        with pytest.raises(ConnectionRefused, match="another database than before"):
            database.cluster.meet("n2", "two")
    finally:
        database.close()
