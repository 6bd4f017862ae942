"""Positions of sources: their texts, what is wrong with others and where, and their order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from local_client import raises

from ducktail.engine.checkpoints.positions import (
    KINDS,
    POSITION_CHARS_MAX,
    BinlogPosition,
    CustomPosition,
    MariadbGtids,
    MysqlGtids,
    PartitionLsns,
    Position,
    PostgresLsn,
    parse_position,
)

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "00000000-1111-2222-3333-444444444444"

# Type, text, and the text as it is written: None where it is that text.
GOOD = [
    ("postgres_lsn", "0/1234ABCD", None),
    ("postgres_lsn", "0/0", None),
    ("postgres_lsn", "FFFFFFFF/FFFFFFFF", None),
    ("postgres_lsn", "16/b374d848", "16/B374D848"),
    ("postgres_lsn", "00000001/0000000A", "1/A"),
    ("binlog", "mysql-bin.000003:12345", None),
    ("binlog", "binlog.with.dots.1234567:0", None),
    ("binlog", "m.000000:18446744073709551615", None),
    ("mysql_gtid", "", None),
    ("mysql_gtid", f"{A}:23", None),
    ("mysql_gtid", f"{A}:1-5,7", f"{A}:1-5:7"),
    ("mysql_gtid", f"{A}:1-5:7", None),
    ("mysql_gtid", f"{A.upper()}:3-4:1-2:9", f"{A}:1-4:9"),
    ("mysql_gtid", f"{A}:1-5:4-8:8", f"{A}:1-8"),
    ("mysql_gtid", f" {A}:1-5 ,\n{B}:7 ", f"{B}:7,{A}:1-5"),
    ("mysql_gtid", f"{A}:1,{A}:2", f"{A}:1-2"),
    ("mysql_gtid", f"{A}:1-5,10-12,20,{B}:1", f"{B}:1,{A}:1-5:10-12:20"),
    ("mysql_gtid", f"{A}:1-3:blue:4-5:red:1", None),
    ("mysql_gtid", f"{A}:Blue:4", f"{A}:blue:4"),
    ("mysql_gtid", f"{A}:9223372036854775806", None),
    ("mariadb_gtid", "0-1-42", None),
    ("mariadb_gtid", "", None),
    ("mariadb_gtid", "1-1-7, 0-1-42", "0-1-42,1-1-7"),
    ("mariadb_gtid", "4294967295-4294967295-18446744073709551615", None),
    ("ducktail", '{"0": 17, "3": 20}', None),
    ("ducktail", "{}", None),
    ("ducktail", ' {"3":20,\n"0" : 17 } ', '{"0": 17, "3": 20}'),
    ("ducktail", '{"0": 9223372036854775807}', None),
    ("custom", "whatever: it is", None),
    ("custom", "", None),
]

# Type, text, the wrong character from 1, and words of what is said of it.
BAD = [
    ("postgres_lsn", "", 1, "hexadecimal"),
    ("postgres_lsn", "0", 2, '"/" is expected'),
    ("postgres_lsn", "0/", 3, "hexadecimal"),
    ("postgres_lsn", "/0", 1, "hexadecimal"),
    ("postgres_lsn", "0/12G", 5, "nothing more"),
    ("postgres_lsn", "0x1/2", 2, '"/" is expected'),
    ("postgres_lsn", "0/100000000", 3, "FFFFFFFF"),
    ("postgres_lsn", "100000000/0", 1, "FFFFFFFF"),
    ("postgres_lsn", "0/000000001", 11, "8 digits"),
    ("postgres_lsn", "-1/0", 1, "hexadecimal"),
    ("postgres_lsn", "0/1 ", 4, "nothing more"),
    ("postgres_lsn", "0/" + "1" * 100, 3, "FFFFFFFF"),
    ("postgres_lsn", "0/\u0661", 3, "hexadecimal"),
    ("binlog", "", 1, '":"'),
    ("binlog", "mysql-bin.000003", 17, '":"'),
    ("binlog", "mysql-bin:4", 1, "file's name"),
    ("binlog", ".000003:4", 1, "file's name"),
    ("binlog", "mysql-bin.:4", 11, "file's number"),
    ("binlog", "mysql-bin.12345:4", 11, "6 digits"),
    ("binlog", "mysql-bin.0000003:4", 11, "0 too many"),
    ("binlog", "mysql-bin.000001x:4", 17, '":" is expected'),
    ("binlog", "mysql-bin.000003:", 18, "place in the file"),
    ("binlog", "mysql-bin.000003:4x", 19, "nothing more"),
    ("binlog", "mysql-bin.000003:18446744073709551616", 18, "not from 0"),
    ("binlog", "mysql-bin.2147483648:4", 11, "not from 0"),
    ("binlog", "../b.000003:4", 3, "does not go on"),
    ("binlog", "b\0.000003:4", 2, "does not go on"),
    ("mysql_gtid", "1-5", 2, "uuid"),
    ("mysql_gtid", A, 37, '":" is expected'),
    ("mysql_gtid", f"{A}:", 38, "transaction's number"),
    ("mysql_gtid", f"{A}:0", 38, "not from 1"),
    ("mysql_gtid", f"{A}:9223372036854775807", 38, "not from 1"),
    ("mysql_gtid", f"{A}:5-3", 38, "before it begins"),
    ("mysql_gtid", f"{A}:1-", 40, "transaction's number"),
    ("mysql_gtid", f"{A}:1,", 40, "uuid or an interval"),
    ("mysql_gtid", f"{A}:1;{B}:1", 39, '"," is expected'),
    ("mysql_gtid", f"{A}:1,,2", 40, "uuid"),
    ("mysql_gtid", f"{A[:-1]}:1", 36, "hexadecimal digit"),
    ("mysql_gtid", A.replace("-", "") + ":1", 9, '"-" is expected'),
    ("mysql_gtid", f"{A}:blue", 42, '":" is expected'),
    ("mysql_gtid", f"{A}:{'t' * 33}:1", 70, "32 characters"),
    ("mariadb_gtid", "0-1", 4, '"-" is expected'),
    ("mariadb_gtid", "0-1-", 5, "transaction's number"),
    ("mariadb_gtid", "0-1-2,0-1-3", 7, "twice"),
    ("mariadb_gtid", "0-1-2,", 7, "domain"),
    ("mariadb_gtid", "4294967296-1-2", 1, "not from 0"),
    ("mariadb_gtid", "0-4294967296-2", 3, "not from 0"),
    ("mariadb_gtid", "0-1-18446744073709551616", 5, "not from 0"),
    ("mariadb_gtid", "0-1-2-3", 6, '"," is expected'),
    ("ducktail", "", 1, '"{" is expected'),
    ("ducktail", "17", 1, '"{" is expected'),
    ("ducktail", '{"0": 17', 9, '"," is expected'),
    ("ducktail", '{"0": 17,}', 10, '""" is expected'),
    ("ducktail", '{"0": -1}', 7, "an LSN"),
    ("ducktail", '{"0": 1.5}', 8, '"," is expected'),
    ("ducktail", '{"0": 01}', 7, "begin with 0"),
    ("ducktail", '{"0": 9223372036854775808}', 7, "not from 0"),
    ("ducktail", '{"x": 1}', 3, "partition's number"),
    ("ducktail", '{"0": 1, "0": 2}', 10, "twice"),
    ("ducktail", '{"1000000000": 1}', 3, "not from 0"),
    ("ducktail", '{"0": 1} x', 10, "nothing more"),
    ("custom", "a\0", 2, "character 0"),
    ("custom", "\ud800", 1, "surrogate"),
    ("custom", "x" * (POSITION_CHARS_MAX + 1), POSITION_CHARS_MAX + 1, "longer"),
]


def short(value: object) -> str:
    return repr(value)[:40]


@pytest.mark.parametrize(("kind", "text", "written"), GOOD, ids=short)
def test_good_texts_are_read_and_written(kind: str, text: str, written: str | None) -> None:
    position = parse_position(kind, text)
    assert type(position) is KINDS[kind] and position.kind == kind
    assert str(position) == (text if written is None else written)
    again = parse_position(kind, str(position))
    assert again == position and hash(again) == hash(position) and position.compare(again) == 0


@pytest.mark.parametrize(("kind", "text", "place", "why"), BAD, ids=short)
def test_bad_texts_say_what_is_wrong_and_where(kind: str, text: str, place: int, why: str) -> None:
    with raises("22P02") as found:
        parse_position(kind, text)
    assert found.value.detail is not None and why in found.value.detail
    assert found.value.position == place and f"At character {place}, " in found.value.detail


def test_an_unknown_type_says_which_there_are() -> None:
    with raises("22023") as found:
        parse_position("lsn", "0/1")
    assert found.value.hint is not None and "postgres_lsn" in found.value.hint


@pytest.mark.parametrize(
    ("text", "number"),
    [("0/1234ABCD", 0x1234ABCD), ("FFFFFFFF/FFFFFFFF", 2**64 - 1), ("1/0", 2**32), ("0/0", 0)],
)
def test_an_lsn_is_a_number_both_ways(text: str, number: int) -> None:
    assert PostgresLsn.parse(text).number == number
    assert str(PostgresLsn(number)) == text


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_is_no_lsn_is_refused(number: int) -> None:
    with raises("22023"):
        PostgresLsn(number)


def binlog(text: str) -> Position:
    return BinlogPosition.parse(text)


# Left, right, and their order.
ORDERS: list[tuple[Position, Position, int | None]] = [
    (PostgresLsn.parse("0/FFFFFFFF"), PostgresLsn.parse("1/0"), -1),
    (PostgresLsn.parse("9/0"), PostgresLsn.parse("10/0"), -1),
    (binlog("b.000009:900"), binlog("b.000010:4"), -1),
    (binlog("b.999999:900"), binlog("b.1000000:4"), -1),
    (binlog("b.000009:5"), binlog("b.000009:40"), -1),
    (binlog("a.000009:5"), binlog("b.000009:5"), None),
    (MysqlGtids.parse(f"{A}:1-5"), MysqlGtids.parse(f"{A}:1-6"), -1),
    (MysqlGtids.parse(f"{A}:1-5"), MysqlGtids.parse(f"{A}:1-5,{B}:1"), -1),
    (MysqlGtids.parse(f"{A}:1-5"), MysqlGtids.parse(f"{A}:2-9"), None),
    (MysqlGtids.parse(f"{A}:3:7"), MysqlGtids.parse(f"{A}:1-4:6-9"), -1),
    (MysqlGtids.parse(f"{A}:4-6"), MysqlGtids.parse(f"{A}:1-4:6-9"), None),
    (MysqlGtids.parse(f"{A}:1"), MysqlGtids.parse(f"{A}:blue:1"), None),
    (MysqlGtids.parse(""), MysqlGtids.parse(f"{A}:1"), -1),
    (MariadbGtids.parse("0-1-41"), MariadbGtids.parse("0-2-42"), -1),
    (MariadbGtids.parse("0-1-42"), MariadbGtids.parse("0-1-42,1-1-1"), -1),
    (MariadbGtids.parse("0-1-42"), MariadbGtids.parse("0-1-41,1-1-1"), None),
    (MariadbGtids.parse("0-1-42"), MariadbGtids.parse("0-2-42"), None),
    (PartitionLsns({0: 17}), PartitionLsns({0: 18}), -1),
    (PartitionLsns({0: 17}), PartitionLsns({0: 17, 1: 0}), -1),
    (PartitionLsns({0: 17, 1: 3}), PartitionLsns({0: 18, 1: 2}), None),
    (CustomPosition("a"), CustomPosition("b"), None),
]


@pytest.mark.parametrize(("left", "right", "order"), ORDERS, ids=str)
def test_positions_are_in_order_where_they_have_one(
    left: Position, right: Position, order: int | None
) -> None:
    assert left.compare(right) == order
    assert right.compare(left) == (None if order is None else -order)
    assert (left < right, left <= right) == (order == -1, order == -1)
    assert not left > right and not left >= right and left != right
    assert (right > left, right >= left) == (order == -1, order == -1)


def test_positions_of_two_types_have_no_order() -> None:
    positions: list[Position] = [PostgresLsn(1), CustomPosition("1"), PartitionLsns({0: 1})]
    for left, right in itertools.permutations(positions, 2):
        assert left != right
        with pytest.raises(TypeError):
            _ = left < right


def test_a_set_contains_a_set() -> None:
    assert MysqlGtids.parse(f"{A}:3") in MysqlGtids.parse(f"{A}:1-5")
    assert MysqlGtids.parse(f"{A}:1-2") not in MysqlGtids.parse(f"{A}:2-5")


@pytest.mark.parametrize(
    "make",
    [
        lambda: MysqlGtids({(A.upper(), ""): ((1, 2),)}),
        lambda: MysqlGtids({(A, "a b"): ((1, 2),)}),
        lambda: MysqlGtids({(A, ""): ((2, 1),)}),
        lambda: MysqlGtids({(A, ""): ((0, 1),)}),
        lambda: MariadbGtids({2**32: (1, 1)}),
        lambda: MariadbGtids({0: (1, -1)}),
        lambda: BinlogPosition("a/b", 1, 4),
        lambda: BinlogPosition("", 1, 4),
        lambda: BinlogPosition("b", -1, 4),
        lambda: BinlogPosition("b", 1, 2**64),
        lambda: PartitionLsns({-1: 4}),
        lambda: PartitionLsns({0: 2**63}),
        lambda: PartitionLsns({0: 1.5}),  # type: ignore[dict-item]
        lambda: PartitionLsns({0: True}),
        lambda: PartitionLsns({True: 1}),
        lambda: PartitionLsns({"0": 1}),  # type: ignore[dict-item]
        lambda: PostgresLsn(1.5),  # type: ignore[arg-type]
        lambda: PostgresLsn("1"),  # type: ignore[arg-type]
        lambda: MysqlGtids({(A, ""): ((1.5, 2),)}),  # type: ignore[dict-item]
        lambda: MariadbGtids({0: (1, 2.5)}),  # type: ignore[dict-item]
        lambda: BinlogPosition("b", 1.0, 4),  # type: ignore[arg-type]
    ],
)
def test_a_position_that_cannot_be_is_not_made(make: Callable[[], Position]) -> None:
    with raises("22023"):
        make()
