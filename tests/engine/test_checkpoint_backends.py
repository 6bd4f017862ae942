"""One suite for all places where checkpoints are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from local_client import raises

from ducktail.engine.checkpoints.backend import KEEP, Backend, MemoryBackend
from ducktail.engine.checkpoints.duckdb_backend import TABLE
from ducktail.engine.checkpoints.file_backend import FileBackend
from ducktail.engine.checkpoints.positions import CustomPosition, PartitionLsns
from ducktail.engine.checkpoints.state import TIME_US_MAX, Checkpoint, CheckpointState
from ducktail.engine.database import Database
from ducktail.engine.errors import DataCorrupted, SerializationFailure
from ducktail.sql.python.stream_manager import checkpoints_of_jobs

Make = Callable[..., Backend]
LONG_AGO_US = 1_700_000_000_000_000


@pytest.fixture
def damage() -> list[DataCorrupted]:
    """What a backend of `make` reports."""
    return []


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """One for all tests."""
    made = Database.open(":memory:")
    yield made
    made.close()


@pytest.fixture(params=["memory", "files", "unsynced files", "duckdb"])
def make(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path, damage: list[DataCorrupted]
) -> Iterator[Make]:
    """`make(keep=3)` opens a backend; two opened in one test are of the same place, but in memory."""
    if request.param == "duckdb":
        with database.cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE}").fetchall()
        database.checkpoints.forget()
        yield partial(checkpoints_of_jobs, database, report=damage.append)
    elif request.param == "memory":
        first = MemoryBackend(report=damage.append)
        yield lambda **options: MemoryBackend(report=damage.append, **options) if options else first
    else:
        fsync = request.param == "files"
        yield partial(FileBackend, tmp_path / "made" / "here", fsync=fsync, report=damage.append)


def state(sequence: int, stream: str = "s", **values: Any) -> CheckpointState:
    """A state with something of everything; its offset is its sequence."""
    fields: dict[str, Any] = {
        "created_us": LONG_AGO_US + sequence,
        "operator_states": {"sum": b"\0\xff" * 3, "": b""},
        "source_offsets": {"0": sequence, "far": 2**64 - 1},
        "watermark_ns": -5,
        "event_count": 2**63 - 1,
        "metadata": {"who": "é\n", "": ""},
        "checkpoint": Checkpoint("ducktail", PartitionLsns({0: sequence, 1: 7}), 1, "tx", {"a": "b"}),
    }
    return CheckpointState(stream, sequence, **{**fields, **values})


def test_what_is_saved_is_loaded(make: Make) -> None:
    backend = make()
    assert backend.latest("s") is None and backend.load("s", 1) is None
    assert not backend.list("s") and not backend.all("s") and not backend.streams() and not backend.count()
    bare = CheckpointState("bare one", 0, 0)
    backend.save(state(1))
    backend.save(bare)
    for opened in (backend, make()):
        assert opened.load("s", 1) == state(1) == opened.latest("s")
        assert opened.load("bare one", 0) == bare
        assert opened.load("s", 0) is None and opened.load("other", 1) is None
        assert list(opened.streams()) == ["bare one", "s"]
        assert (opened.count(), opened.count("s"), opened.count("other")) == (2, 1, 0)


def test_the_newest_are_kept(make: Make) -> None:
    backend = make()
    for sequence in range(1, KEEP + 6):
        backend.save(state(sequence))
        backend.save(state(sequence, "other")) if sequence < 4 else None
    kept = list(range(6, KEEP + 6))
    assert list(backend.list("s")) == kept
    assert list(backend.all("s")) == [state(sequence) for sequence in kept]
    assert backend.latest("s") == state(kept[-1])
    assert list(backend.list("other")) == [1, 2, 3]
    few = make(keep=2)
    for sequence in (99, 100, 101):
        few.save(state(sequence, "other"))
    assert list(few.list("other")) == [100, 101]


@pytest.mark.parametrize("keep", [0, -1, 10_001])
def test_a_senseless_bound_is_refused(make: Make, keep: int) -> None:
    with raises("22023"):
        make(keep=keep)


def test_a_sequence_saved_again_replaces(make: Make) -> None:
    backend = make()
    for sequence in (1, 2, 3):
        backend.save(state(sequence))
    again = state(2, metadata={"again": "yes"}, operator_states={})
    backend.save(again)
    assert backend.load("s", 2) == again
    assert list(backend.list("s")) == [1, 2, 3]
    last = state(3, event_count=1)
    backend.save(last)
    assert backend.latest("s") == last


def at(offset: int | None, position: Any = None, source: str = "ducktail") -> dict[str, Any]:
    """What a state's sources are at."""
    return {
        "source_offsets": {} if offset is None else {"0": offset},
        "checkpoint": None if position is None else Checkpoint(source, position, 1),
    }


BACK = [
    (at(10), at(9)),
    (at(10), at(None)),
    (at(None, PartitionLsns({0: 5})), at(None, PartitionLsns({0: 4}))),
    (at(None, PartitionLsns({0: 5, 1: 5})), at(None, PartitionLsns({0: 6}))),
    (at(None, PartitionLsns({0: 5, 1: 5})), at(None, PartitionLsns({0: 6, 1: 4}))),
    (at(None, PartitionLsns({0: 5})), at(None)),
    (at(None, PartitionLsns({0: 5})), at(None, CustomPosition("6"), "custom")),
]


@pytest.mark.parametrize(("before", "after"), BACK)
def test_a_position_goes_back_only_when_asked(
    make: Make, before: dict[str, Any], after: dict[str, Any]
) -> None:
    backend = make()
    backend.save(state(4, **before))
    for sequence in (4, 5):
        with raises("22023") as found:
            backend.save(state(sequence, **after))
        assert found.value.detail is not None and "was" in found.value.detail
    assert backend.all("s") == [state(4, **before)]
    backend.save(state(5, **after), rewind=True)
    assert backend.latest("s") == state(5, **after)


def test_the_same_place_and_later_ones_are_forward(make: Make) -> None:
    backend = make()
    backend.save(state(1, **at(7)))
    backend.save(state(2, **at(7)))
    backend.save(state(3, **at(8, PartitionLsns({0: 1}))))
    backend.save(state(4, **at(8, PartitionLsns({0: 1, 1: 0}))))
    backend.save(state(1, "c", **at(None, CustomPosition("b"), "custom")))
    backend.save(state(2, "c", **at(None, CustomPosition("a"), "custom")))
    assert backend.count() == 6


def test_a_lower_sequence_is_back_as_well(make: Make) -> None:
    backend = make()
    for sequence in (3, 5, 7):
        backend.save(state(sequence, **at(1)))
    with raises("22023"):
        backend.save(state(4, **at(1)))
    backend.save(state(4, **at(0)), rewind=True)
    assert list(backend.list("s")) == [3, 4]
    assert backend.latest("s") == state(4, **at(0))


def test_what_is_deleted_is_gone(make: Make) -> None:
    backend = make()
    for sequence in range(1, 7):
        backend.save(state(sequence))
        backend.save(state(sequence, "other"))
    assert backend.delete("s", 6) and not backend.delete("s", 6)
    assert backend.latest("s") == state(5)
    assert backend.delete_before("s", 4) == 3
    assert backend.delete_before("s", 4) == 0
    assert list(backend.list("s")) == [4, 5]
    assert backend.clear("s") == 2 and backend.latest("s") is None
    assert backend.clear("s") == 0 and not backend.delete("nothing", 1)
    assert list(backend.streams()) == ["other"] and backend.count() == 6
    backend.save(state(1))
    assert list(backend.list("s")) == [1]


KEYS = ["", ".", "..", "../up", "a/b", "/etc", "a\\b", ".hidden", "a\0b", "a\nb", "\ud800"]
LONG_KEYS = ["k" * 201, "é" * 101]
ODD_KEYS = ["a", "main.orders", "it's", "a b", "k" * 200, "é", "東京", "a..b", '"', "%41", "x:y"]


@pytest.mark.parametrize("key", KEYS + LONG_KEYS)
def test_keys_that_lead_elsewhere_are_refused(make: Make, key: str) -> None:
    backend = make()
    with raises("22023"):
        state(1, key)
    calls: list[Callable[[], object]] = [
        lambda: backend.load(key, 1),
        lambda: backend.latest(key),
        lambda: backend.list(key),
        lambda: backend.all(key),
        lambda: backend.count(key),
        lambda: backend.delete(key, 1),
        lambda: backend.delete_before(key, 1),
        lambda: backend.clear(key),
    ]
    for call in calls:
        with raises("22023"):
            call()


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_are_keys(make: Make, key: str) -> None:
    backend = make()
    backend.save(state(1, key))
    assert backend.latest(key) == state(1, key) and list(backend.streams()) == [key]


def test_the_highest_numbers_fit(make: Make) -> None:
    backend = make()
    top = state(2**63 - 1, created_us=TIME_US_MAX)
    backend.save(top)
    assert backend.latest("s") == top and list(backend.list("s")) == [2**63 - 1]
    assert backend.delete_before("s", 2**63 - 1) == 0 and backend.delete("s", 2**63 - 1)


def test_several_threads_share_one(make: Make) -> None:
    backend = make(keep=5)
    failed: list[BaseException] = []
    begun = threading.Barrier(5)

    def work(stream: str) -> None:
        try:
            begun.wait(20)
            for sequence in range(12):
                backend.save(state(sequence, stream))
                found = backend.latest(stream)
                assert found is not None and found.stream == stream and found.sequence >= sequence
                assert stream in backend.streams() and backend.count() and backend.all(stream)
                if sequence % 5 == 4:
                    backend.delete_before(stream, sequence)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    work("e")
    for thread in threads:
        thread.join()
    assert not failed
    assert list(backend.streams()) == ["a", "b", "c", "d", "e"]
    for name in backend.streams():
        assert backend.latest(name) == state(11, name)


@pytest.mark.parametrize("make", ["files", "duckdb"], indirect=True)
@pytest.mark.parametrize("read", [lambda b: [b.latest("s")], lambda b: b.all("s")], ids=["latest", "all"])
def test_what_is_listed_goes_before_it_is_read(
    make: Make, read: Callable[[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, saver, intact = make(keep=2), make(keep=2), Backend._intact
    for sequence in range(2):
        saver.save(state(sequence))
    left = [*range(2, 8)]

    def late(self: Backend, place: Any, stream: str, sequences: Iterable[int]) -> Iterator[CheckpointState]:
        listed = list(sequences)
        if self is backend:
            # As many as are kept: all that was listed has gone (in DuckDB only a rewind lets go at once).
            for sequence in left[:2]:
                saver.save(state(sequence), rewind=True)
            del left[:2]
        yield from intact(self, place, stream, listed)

    monkeypatch.setattr(Backend, "_intact", late)
    assert read(backend)[-1] == state(7)
    monkeypatch.setattr("ducktail.engine.checkpoints.backend.LOOKS_MAX", 2)
    left += range(8, 14)
    with pytest.raises(SerializationFailure, match="faster than they can be read"):
        read(backend)


def test_savers_of_one_stream_never_take_it_back(make: Make) -> None:
    backend, refused = make(), []

    def work() -> None:
        for sequence in range(30):
            try:
                backend.save(state(sequence))
            except Exception as error:
                refused.append(error)
            newest = backend.latest("s")
            assert newest is not None and newest.sequence >= sequence

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.latest("s") == state(29)
    assert {getattr(error, "sqlstate", error) for error in refused} <= {"22023"}
