"""Which failures are counted as questions that the catalog has no answer to."""

from __future__ import annotations

import pytest

from ducktail.engine.errors import (
    DucktailError,
    NotSupported,
    SyntaxError_,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
)
from ducktail.pgwire_gateway.catalog.unanswered_queries import Unanswered, is_probe

PROBES: list[tuple[str, DucktailError]] = [
    ("SELECT * FROM pg_nothing", UndefinedTable('relation "pg_nothing" does not exist')),
    (
        "SELECT * FROM information_schema.nothing",
        UndefinedTable('relation "nothing" does not exist'),
    ),
    ("SELECT pg_nothing(i) FROM t", UndefinedFunction("function with name pg_nothing does not exist")),
    (
        "SELECT pg_catalog.nothing(1)",
        UndefinedFunction("scalar function with name nothing does not exist"),
    ),
    ("SELECT c.nothing FROM pg_catalog.pg_class c", UndefinedColumn('column "nothing" not found')),
    ("SELECT oid FROM pg_class ORDER BY oid USING <", SyntaxError_("syntax error")),
    ("SELECT unheard(oid) FROM pg_class", UndefinedFunction("function with name unheard does not exist")),
    ("SELECT oid FROM pg_class FOR SHARE", NotSupported("FOR SHARE is not supported")),
]
OWN: list[tuple[str, DucktailError]] = [
    ("SELECT * FROM nothing", UndefinedTable('relation "nothing" does not exist')),
    ("SELECT * FROM nothing, pg_class", UndefinedTable('relation "nothing" does not exist')),
    ("SELECT nothing FROM t JOIN pg_class ON true", UndefinedColumn('column "nothing" not found')),
    ("SELECT nothing FROM t", UndefinedColumn('column "nothing" not found')),
    ("SELECT nothing(i) FROM t", UndefinedFunction("scalar function with name nothing does not exist")),
    ("SELECT 'nothing'::regclass", UndefinedTable('relation "nothing" does not exist')),
    (
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = $1::regclass::oid",
        UndefinedTable('relation ""public" . "nothing"" does not exist'),
    ),
    ("SELECT 'nothing'::regtype", UndefinedObject('type "nothing" does not exist')),
    ("SELECT * FROM pg_class WHERE 1 = 'x'", DucktailError("whatever")),
]


@pytest.mark.parametrize(("text", "error"), PROBES, ids=[text for text, _ in PROBES])
def test_the_catalogs_own(text: str, error: DucktailError) -> None:
    assert is_probe(text, error)


@pytest.mark.parametrize(("text", "error"), OWN, ids=[text for text, _ in OWN])
def test_the_clients_own(text: str, error: DucktailError) -> None:
    assert not is_probe(text, error)


def test_each_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    found = Unanswered()
    for text, error in (*PROBES, *PROBES, *OWN):
        found.note(text, error)
    assert found.count == 2 * len(PROBES)
    # sqlglot may have words of its own for one that it has not seen.
    assert sum(record.name == "ducktail.catalog" for record in caplog.records) == len(PROBES)
