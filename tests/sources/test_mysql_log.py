"""Parts of MySQL's log that MariaDB's has not, as MySQL 9.7 has written them; and hostile statements.

Source: docs/sources.md; issue 28.
"""

from __future__ import annotations

import random

import pytest

from ducktail.engine.checkpoints.positions import BinlogPosition, MariadbGtids, MysqlGtids
from ducktail.engine.errors import (
    DataError,
    DucktailError,
    InvalidTextRepresentation,
    NotSupported,
    WrongState,
)
from ducktail.pgwire_gateway.sources.mysql import binlog
from ducktail.pgwire_gateway.sources.mysql.mysql_changes import LogPlace, _Reached
from ducktail.pgwire_gateway.sources.mysql.mysql_ddl import created, tokens
from ducktail.pgwire_gateway.sources.mysql.mysql_json import json_text
from ducktail.pgwire_gateway.sources.mysql.mysql_statements import Define, Dialect, Reread, Truncate, effects

# The bytes in the log, and the text of the same value in a SELECT.
DOCUMENTS = (
    ("", "null"),
    ("0400", "null"),
    ("0401", "true"),
    ("050080", "-32768"),
    ("07ffff0000", "65535"),
    ("0700000080", "-2147483648"),
    ("09ffffffff00000000", "4294967295"),
    ("090000000000000080", "-9223372036854775808"),
    ("0affffffffffffffff", "18446744073709551615"),
    ("0b00003426f56b0c43", "1e15"),
    ("0b48afbc9af2d77abe", "-0.0000001"),
    ("0c0a6122c3a9f09f98800a01", '"a\\"é😀\\n\\u0001"'),
    (
        "000200400012000100130001000014000228006162010014000b0001000b0c0063000000000000f8bf"
        "040018000501000010000214000402000000040000000400",
        '{"a": {"c": -1.5}, "b": [1, {}, [], false]}',
    ),
    (
        "02040038000f10000f1a000f24000f2e00f6080d047fffff84ee6b0a080000000000bab2190b08e05ef804d1d1ffff"
        "0c0870580a053144b219",
        '[-123.4500, "2024-02-29", "-738:59:59.500000", "2024-01-02 03:04:05.678000"]',
    ),
    ("0201000b000f07000f0200ff", '["base64:type15:AP8="]'),
)
UUID = "db87efdd-eb1d-11f1-9f8c-02fc00000001"
GTID_EVENT = (
    "00db87efddeb1d11f19f8c02fc00000001790f0000000000000210000000000000001100000000000000"
    "fbb51e6b556106fc190150620100"
)


@pytest.mark.parametrize(("stored", "text"), DOCUMENTS)
def test_documents_are_those_of_a_select(stored: str, text: str) -> None:
    assert json_text(bytes.fromhex(stored)) == text


def test_malformed_documents_are_errors() -> None:
    numbers = random.Random(28)
    whole = [bytes.fromhex(stored) for stored, _ in DOCUMENTS if stored]
    for document in whole:
        for _ in range(50):
            changed = bytearray(document[: numbers.randrange(1, len(document) + 1)])
            for _ in range(numbers.randrange(3)):
                changed[numbers.randrange(len(changed))] = numbers.randrange(256)
            try:
                assert isinstance(json_text(bytes(changed)), str)
            except DataError:
                pass


def test_a_gtid_of_mysql() -> None:
    event = binlog.Event(binlog.GTID, 0, 1, 100, 79, bytes.fromhex(GTID_EVENT))
    assert binlog.mysql_gtid(event) == (UUID, 3961, 1795869357553147)


def test_positions_are_kept_up_with_the_transactions() -> None:
    reached = _Reached(MysqlGtids.parse(f"{UUID}:1-5:8"), LogPlace())
    for number, expected in ((9, "1-5:8-9"), (6, "1-6:8-9"), (20, "1-6:8-9:20"), (7, "1-9:20")):
        reached.add_mysql(UUID, number)
        assert reached.text == f"{UUID}:{expected}" and str(MysqlGtids.parse(reached.text)) == reached.text
    other = "00000000-0000-0000-0000-000000000001"
    reached.add_mysql(other, 3)
    assert reached.text == f"{other}:3,{UUID}:1-9:20"
    domains = _Reached(MariadbGtids.parse("0-1-5,7-2-9"), LogPlace())
    domains.add_mariadb(3, 4, 1)
    domains.add_mariadb(0, 2, 6)
    assert domains.text == "0-2-6,3-4-1,7-2-9"


def test_the_place_in_a_file_counts_on_behind_4_gib() -> None:
    place = LogPlace()
    body = (4).to_bytes(8, "little") + b"binlog.000007"
    place.rotate(binlog.Event(binlog.ROTATE, 0, 1, 0, 40, body))
    for end in (1 << 31, (1 << 32) - 10, 90, 200):
        place.advance(binlog.Event(binlog.XID, 0, 1, end, 31, b""))
    assert place.text == f"binlog.000007:{(1 << 32) + 200}"


def test_kinds_of_positions() -> None:
    for text, kind in (
        ("0-1-5", MariadbGtids),
        (f"{UUID}:1-5", MysqlGtids),
        ("binlog.000001:4", BinlogPosition),
    ):
        assert type(binlog.position_of(text)) is kind
    with pytest.raises(InvalidTextRepresentation):
        binlog.position_of("nothing")


TABLE = created(
    "CREATE TABLE `t` (`id` int NOT NULL, `v` varchar(10) DEFAULT NULL, PRIMARY KEY (`id`)) "
    "DEFAULT CHARSET=utf8mb4",
    "d", mariadb=True,
)  # fmt: skip
DIALECT = Dialect(mariadb=True, lower_names=False, logs_foreign_keys=False)


def effects_of(text: str, sql_mode: int = 0, dialect: Dialect = DIALECT) -> list[object]:
    return list(effects(text, "d", sql_mode, {("d", "t"): TABLE}, dialect))


def test_statements_in_other_modes_and_writings() -> None:
    for text, mode in (
        ("/* a */ TRUNCATE -- b\n t # c", 0), ('TRUNCATE TABLE "d"."t"', 1 << 2), ("truncate `d` . `t`", 0),
        ("/*!40000 TRUNCATE */ /*M!100100 TABLE */ t", 0), ("DELETE FROM t", 0),
    ):  # fmt: skip
        assert effects_of(text, mode) == [Truncate(("d", "t"))], text
    assert effects_of("TRUNCATE T") == [] and effects_of("TRUNCATE e.t") == []
    lower = Dialect(mariadb=True, lower_names=True, logs_foreign_keys=False)
    assert effects_of("TRUNCATE D.T", dialect=lower) == [Truncate(("d", "t"))]
    assert effects_of("/*!50701 TRUNCATE t */") == [] and effects_of("/*M!999999 TRUNCATE t */") != []


def test_names_and_texts_with_quotes() -> None:
    [found] = effects_of(
        "ALTER TABLE t ADD `a``, b` ENUM('it''s', \"x\\\"y\", 'a\\nb', _utf8'é', 'p' 'q') DEFAULT 'pq'"
    )
    assert isinstance(found, Define)
    added = found.table.columns[-1]
    assert added.name == "a`, b" and added.values == ("it's", 'x"y', "a\nb", "é", "pq")
    assert found.fills == {"a`, b": "'pq'"}
    [plain] = effects_of("ALTER TABLE t ADD c VARCHAR(5) DEFAULT 'a\\'", 1 << 20)
    assert isinstance(plain, Define) and plain.fills == {"c": "'a\\'"}


@pytest.mark.parametrize(
    "text",
    ["ALTER TABLE t ADD (", "ALTER TABLE t ADD c", "ALTER TABLE t ADD c INT AFTER nothing",
     "ALTER TABLE t FROB c", "ALTER TABLE t ADD c NUMBER", "ALTER TABLE t DROP nothing",
     "ALTER TABLE t ADD v INT", "ALTER TABLE t MODIFY",
     "ALTER TABLE t ADD c INT, DEFAULT CHARSET latin1", "ALTER TABLE t CHANGE v w INT, DROP w",
     "ALTER TABLE t ADD PERIOD FOR SYSTEM_TIME (a, b)", "ALTER TABLE t ADD c INT WITHOUT SYSTEM VERSIONING"],
)  # fmt: skip
def test_statements_that_are_not_certain(text: str) -> None:
    assert effects_of(text) == [Reread(("d", "t"))]


@pytest.mark.parametrize(
    "text", ["TRUNCATE t 'open", "FROBNICATE t", "DROP TABLE t, `open", "RENAME TABLE t"]
)
def test_statements_that_cannot_be_read(text: str) -> None:
    with pytest.raises(WrongState, match="t"):
        effects_of(text)


def test_any_text_is_read_or_refused() -> None:
    numbers = random.Random(28)
    words = [
        "ALTER", "TABLE", "t", "ADD", "(", ")", ",", "`", "'", '"', "\\", "/*", "*/", "/*!", "--", "#",
        "INT", "DEFAULT", "1", ".5e", "x'0", "b'1'", "RENAME", "TO", "DROP", "\n", "\0", "é", "ENUM", "=",
    ]  # fmt: skip
    for _ in range(3000):
        text = " ".join(numbers.choices(words, k=numbers.randrange(1, 15)))
        try:
            effects_of(numbers.choice(["", "ALTER TABLE t "]) + text)
        except DucktailError:
            pass


def test_the_size_of_a_statement_costs_no_more_than_its_reading() -> None:
    text = "ALTER TABLE t ADD c INT COMMENT '" + "''" * 200_000 + "', " + "ADD INDEX (id), " * 5_000 + "FORCE"
    assert len(tokens(text)) > 20_000
    [found] = effects_of(text)
    assert isinstance(found, Define) and len(found.table.columns) == 3


def test_gtids_with_a_tag_are_refused() -> None:
    with pytest.raises(NotSupported, match="tag"):
        binlog._gtid_dump(MysqlGtids.parse(f"{UUID}:tagged:1-5"), 5, True)
    command = binlog._gtid_dump(MysqlGtids.parse(f"{UUID}:1-5"), 5, True)
    assert command[0] == 0x1E and command.endswith(
        (1).to_bytes(8, "little") + bytes.fromhex(UUID.replace("-", "")) + (1).to_bytes(8, "little")
        + (1).to_bytes(8, "little") + (6).to_bytes(8, "little")
    )  # fmt: skip
