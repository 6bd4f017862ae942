"""The two forms of a checkpoint state: every damage is told, nothing is allocated that is not there."""

from __future__ import annotations

import random
import resource
import struct
import tracemalloc
from typing import Any

import pytest
from amounts import amount
from local_client import raises
from random_checkpoints import FORMS, Form, fuzz, is_told, random_state, sealed

from ducktail.engine.checkpoints.encodings import (
    FORM_BYTES_MAX,
    HEAD_BYTES,
    from_bytes,
    from_json,
    to_bytes,
    to_json,
)
from ducktail.engine.checkpoints.positions import CustomPosition, MysqlGtids, PartitionLsns, PostgresLsn
from ducktail.engine.checkpoints.state import (
    NAME_BYTES_MAX,
    NAMES_MAX,
    STATE_BYTES_MAX,
    TIME_US_MAX,
    VALUE_BYTES_MAX,
    Checkpoint,
    CheckpointState,
)

# DUCKTAIL_FUZZ=SECONDS fuzzes for so long, else a share.
SECONDS = amount("DUCKTAIL_FUZZ", 0.0, 300.0)
ROUNDS = 150

STATE = CheckpointState(
    "orders",
    7,
    1_700_000_000_000_001,
    operator_states={"sum": bytes(range(40)), "": b""},
    source_offsets={"0": 17, "1": 2**64 - 1},
    watermark_ns=1_700_000_000_000_000_001,
    event_count=1000,
    metadata={"job": "flights", "é": ""},
    checkpoint=Checkpoint("ducktail", PartitionLsns({0: 17, 1: 20}), 1_700_000_000_000_000, "tx", {"a": "b"}),
)
BARE = CheckpointState("s", 0, 0)
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])


@forms
@pytest.mark.parametrize("state", [STATE, BARE], ids=["all", "bare"])
def test_a_form_is_read_back(form: Form, state: CheckpointState) -> None:
    _, write, read = form
    assert read(write(state)) == state
    assert write(read(write(state))) == write(state)


@forms
@pytest.mark.parametrize("state", [STATE, BARE], ids=["all", "bare"])
def test_every_truncation_is_told(form: Form, state: CheckpointState) -> None:
    _, write, read = form
    data = write(state)
    assert all(is_told(read, data[:length]) for length in range(len(data)))
    assert is_told(read, data + b"\0") and is_told(read, data + data)


@forms
@pytest.mark.parametrize("state", [STATE, BARE], ids=["all", "bare"])
def test_every_flipped_bit_is_told(form: Form, state: CheckpointState) -> None:
    _, write, read = form
    data = bytearray(write(state))
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            assert is_told(read, bytes(data)), (place, bit)
            data[place] ^= 1 << bit
        for value in (0, 255):
            if data[place] != value:
                assert is_told(read, bytes(data[:place]) + bytes([value]) + bytes(data[place + 1 :]))


def test_the_binary_form_is_what_the_table_says() -> None:
    data = to_bytes(BARE)
    head = struct.unpack_from("<4sHHI", data)
    assert head == (b"DTCK", 1, 0, len(data))
    body = struct.pack("<I1sQQBQIIIB", 1, b"s", 0, 0, 0, 0, 0, 0, 0, 0)
    assert data[HEAD_BYTES:] == body


def test_the_file_can_be_read_by_people() -> None:
    text = to_json(STATE).decode()
    for line in (
        '"stream": "orders"',
        '"created_at": "2023-11-14T22:13:20.000001+00:00"',
        '"source": "ducktail"',
        r'"text": "{\"0\": 17, \"1\": 20}"',
        '"watermark_ns": 1700000000000000001',
        '"1": 18446744073709551615',
        '"é": ""',
    ):
        assert line in text


@forms
def test_fuzzed(form: Form) -> None:
    if form[0] == "binary":  # each round has both
        counts = fuzz(20_261_122, rounds=None if SECONDS else ROUNDS, seconds=SECONDS)
        print(dict(counts), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB at the most")
        assert counts["binary: forged, a state"] and counts["json: forged, a state"]


def test_lengths_that_lie_allocate_nothing() -> None:
    """Each four bytes of the body as an enormous length, sealed as if it were right."""
    data = to_bytes(STATE)
    lie = struct.pack("<I", (1 << 32) - 1)
    tracemalloc.start()
    for place in range(HEAD_BYTES, len(data) - 3):
        is_told(from_bytes, sealed("binary", data[:place] + lie + data[place + 4 :]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("length", [0, FORM_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_length_that_lies_is_told(length: int) -> None:
    data = to_bytes(STATE)
    with raises("XX001"):
        from_bytes(data[:8] + struct.pack("<I", length) + data[12:])


def test_a_newer_version_is_told_as_such() -> None:
    data = bytearray(sealed("binary", to_bytes(STATE)))
    data[4] = 2
    from ducktail.engine.checkpoints.encodings import digest

    data[12:28] = digest(bytes(data[:12]), bytes(data[28:]))
    with raises("XX001") as found:
        from_bytes(bytes(data))
    assert found.value.detail is not None and "version 2" in found.value.detail
    newer = sealed("json", to_json(STATE).replace(b'"format": 1', b'"format": 2'))
    with raises("XX001") as found:
        from_json(newer)
    assert found.value.detail is not None and "format 2" in found.value.detail


@pytest.mark.parametrize(
    "wrong",
    [
        (b'"sequence": 7', b'"sequence": -7'),
        (b'"sequence": 7', b'"sequence": 7.5'),
        (b'"sequence": 7', b'"sequence": true'),
        (b'"sequence": 7', b'"sequence": ' + b"1" * 5000),
        (b'"stream": "orders"', b'"stream": "../orders"'),
        (b'"stream": "orders"', b'"stream": null'),
        (b'"type": "ducktail"', b'"type": "postgres_lsn"'),
        (b'"source": "ducktail"', b'"source": "oracle"'),
        (b'"metadata": {', b'"metadata": [' * 100_000),
        (b'"event_count": 1000,', b""),
        (b'"sum": "AAEC', b'"sum": "?AEC'),
        (b"+00:00", b""),
        (b"2023-11-14", b"2023-11-99"),
    ],
    ids=lambda wrong: str(wrong[1])[:30],
)
def test_a_forged_file_is_told(wrong: tuple[bytes, bytes]) -> None:
    data = to_json(STATE)
    assert wrong[0] in data
    assert is_told(from_json, sealed("json", data.replace(*wrong)))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("22023", {"stream": ""}),
    ("22023", {"stream": "../x"}),
    ("22023", {"sequence": -1}),
    ("22023", {"sequence": 2**63}),
    ("22023", {"sequence": True}),
    ("22023", {"created_us": TIME_US_MAX + 1}),
    ("22023", {"watermark_ns": 2**63}),
    ("22023", {"event_count": -1}),
    ("22023", {"source_offsets": {"a": 2**64}}),
    ("22023", {"source_offsets": {"a": -1}}),
    ("22023", {"source_offsets": {"a\0": 1}}),
    ("22023", {"operator_states": {"a": "text"}}),
    ("22023", {"operator_states": {"\ud800": b""}}),
    ("22023", {"metadata": {"a": 1}}),
    ("54000", {"metadata": {"a": "x" * (VALUE_BYTES_MAX + 1)}}),
    ("54000", {"metadata": {"a" * (NAME_BYTES_MAX + 1): ""}}),
    ("54000", {"source_offsets": {str(n): n for n in range(NAMES_MAX + 1)}}),
    ("54000", {"operator_states": {"a": bytes(STATE_BYTES_MAX), "b": b"1"}}),
]


@pytest.mark.parametrize(
    ("sqlstate", "values"), WRONG, ids=[f"{code}-{next(iter(values))}" for code, values in WRONG]
)
def test_a_state_that_cannot_be_is_refused(sqlstate: str, values: dict[str, Any]) -> None:
    with raises(sqlstate):
        CheckpointState(**{"stream": "s", "sequence": 1, "created_us": 1, **values})


@pytest.mark.slow
def test_a_state_of_the_greatest_size_has_both_forms() -> None:
    state = CheckpointState("s", 1, 1, operator_states={"a": bytes(STATE_BYTES_MAX)})
    assert from_bytes(to_bytes(state)) == state
    assert from_json(to_json(state)) == state


def test_a_state_is_longer_than_its_form_may_be() -> None:
    metadata = {str(n): "x" * VALUE_BYTES_MAX for n in range(2000)}
    with raises("54000"):
        to_bytes(CheckpointState("s", 1, 1, metadata=metadata))


def test_a_checkpoint_has_its_sources_positions() -> None:
    with raises("22023") as found:
        Checkpoint("oracle", CustomPosition("1"), 0)
    assert found.value.hint is not None and "postgresql" in found.value.hint
    with raises("22023") as found:
        Checkpoint("mysql", PostgresLsn(1), 0)
    assert found.value.hint is not None and "mysql_gtid" in found.value.hint


def test_a_position_that_could_not_be_read_back_is_refused() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    holes = MysqlGtids({(uuid, ""): tuple((number, number) for number in range(1, 400_000, 2))})
    with raises("54000"):
        Checkpoint("mysql", holes, 1)


def test_age_and_order_of_a_checkpoint() -> None:
    first, second = (Checkpoint("postgresql", PostgresLsn(n), 1_000_000) for n in (1, 2))
    assert first.age_us(3_500_000) == 2_500_000 and first.age_us(0) == 0
    assert STATE.age_us(STATE.created_us + 5) == 5
    assert (first.compare(second), second.compare(first), first.compare(first)) == (-1, 1, 0)
    assert first.compare(Checkpoint("custom", CustomPosition("1"), 0)) is None


def test_random_states_differ() -> None:
    rng = random.Random(1)
    assert len({to_bytes(random_state(rng)) for _ in range(50)}) == 50
