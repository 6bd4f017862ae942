"""Our own SQL asks DuckDB's catalog in a way that no object of a user can stand before.

DuckDB's information_schema reads `duckdb_views` by its bare name, and a bare function may be a user's macro:
so each of our texts calls the table functions with their catalog and schema. Names are folded by `fold` and
`folded_sql`; SQL's lower() and Python's fold all of Unicode, and DuckDB does not.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sql_texts import VALUE, is_sql, sources, texts

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "sql", "pgwire_gateway")

# Text that is no SQL of ours -> why.
ALLOWED = {
    "SELECT * FROM information_schema.tables shows what you may see.": "a hint: the user's SQL",
    "SELECT * FROM duckdb_triggers() lists them; DROP TRIGGER first.": "a hint: the user's SQL",
}

# SQL that another database runs. File -> whose it is.
ELSEWHERE = {"pgwire_gateway/sources/mysql/mysql_connector.py": "MySQL"}

BARE = {
    "a relation of information_schema": re.compile(rf"(?<![\w.{VALUE}])(?:system\.)?information_schema\.\w"),
    "a function without its catalog and schema": re.compile(
        rf"(?<!system\.main\.)(?<![\w{VALUE}])(?:duckdb|pragma)_[\w{VALUE}]+\("
    ),
    "a view of DuckDB's": re.compile(r"\b(?:FROM|JOIN)\s+(?:\w+\.)*(?:duckdb|pragma)_\w+\b(?!\s*\()"),
    "DuckDB's views for SQLite's and PostgreSQL's clients": re.compile(
        r"\b(?:FROM|JOIN)\s+(?:main\.)?(?:sqlite_(?:temp_)?(?:master|schema)|pragma_database_list)\b"
    ),
}
# A fold by SQL of what is a name: `lower(table_name)`, `lower(t.name)`, `upper(z_s.nspname)`.
UNICODE_FOLD = re.compile(
    r"\b(?:lower|upper)\(\s*(?:[\w]+\.)?\"?"
    r"(?:\w*_name|name|relname|nspname|proname|typname|table_schema|schema|z_schema|z_name)\b"
)

# Python that folds all of Unicode: these are no names of DuckDB's objects. File -> what they are.
FOLDS_OTHERS = {
    "pgwire_gateway/catalog/templates.py": "names of months and days in to_char's templates",
    "engine/checkpoints/positions.py": "hexadecimal digits",
    "engine/duck/duckdb_errors.py": "messages",
    "engine/system_views/rows.py": "a user",
    "engine/server_log.py": "a level",
    "engine/placement/placement.py": "a host, a message",
    "engine/placement/placement_plan.py": "a host",
    "engine/placement/cluster_file.py": "a host, a message",
    "engine/quoting.py": "fold itself",
    "engine/rights_changes.py": "a user",
    "engine/storage/duckdb_file.py": "a message",
    "engine/toml_file.py": "a message",
    "engine/values/numbers.py": "words of values",
    "engine/values/parameters.py": "a type in a message",
    "engine/values/temporal_input.py": "words of values",
    "pgwire_gateway/catalog/installation.py": "an answer",
    "pgwire_gateway/command/cluster.py": "a user",
    "pgwire_gateway/command/configuration.py": "settings",
    "pgwire_gateway/conversation/startup.py": "settings",
    "pgwire_gateway/server/admission.py": "users",
    "pgwire_gateway/server/postmaster.py": "a message",
    "pgwire_gateway/server/tls.py": "a message",
    "pgwire_gateway/server/metrics.py": "a message",
    "sql/copy/copy_options.py": "options",
    "sql/peer_requests/learning.py": "a user",
    "sql/language/scan.py": "a keyword",
    "sql/language/clauses.py": "options",
    "engine/catalog/rights.py": "users, groups, bookmarks and pipelines",
    "sql/session_state/access.py": "users",
    "sql/rights/analysis.py": "verbs",
    "sql/rights/visibility.py": "users and privileges",
    "sql/rights/ddl_permission.py": "words of messages",
    "sql/rights/permission.py": "settings",
    "sql/rights/plan.py": "a text in which our own name is looked for",
    "sql/statements/users.py": "users",
    "sql/ddl/ddl.py": "words of messages",
    "sql/statements/set_and_show.py": "settings",
    "sql/statements/streams.py": "a keyword",
    "sql/language/classify_session.py": "settings and keywords",
    "engine/values/date_styles.py": "words of a setting",
    "sql/text/units.py": "units",
    "sql/settings.py": "settings",
    "sql/text/tokens.py": "words of SQL",
    "pgwire_gateway/sources/mysql/mysql_connector.py": "engines of MySQL",
    "pgwire_gateway/sources/mysql/mysql_changes.py": "columns of MySQL",
    "pgwire_gateway/sources/mysql/mysql_ddl.py": "words and names of MySQL",
    "pgwire_gateway/sources/mysql/mysql_statements.py": "words and names of MySQL",
    "pgwire_gateway/sources/mysql/mysql_server.py": "messages and versions",
    "pgwire_gateway/http_api/authentication.py": "users and words of headers",
    "pgwire_gateway/http_api/openapi.py": "methods",
    "pgwire_gateway/http_api/polls.py": "words of a header",
    "pgwire_gateway/http_api/requests.py": "words of a header",
    "pgwire_gateway/http_api/sessions.py": "users",
    "pgwire_gateway/http_api/watch_routes.py": "users",
}


def _files() -> list[Path]:
    return [path for package in PACKAGES for path in sources(ROOT / package)]


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("what", BARE)
def test_catalog_is_asked_in_full(what: str) -> None:
    found = [
        f"{_place(path)}:{line}: {text.strip()}"
        for path in _files()
        for line, text in texts(path)
        if is_sql(text) and text not in ALLOWED and BARE[what].search(text) and _place(path) not in ELSEWHERE
    ]
    assert found == []


def test_sql_folds_names_as_duckdb_does() -> None:
    found = [
        f"{_place(path)}:{line}: {text.strip()}"
        for path in _files()
        for line, text in texts(path)
        if UNICODE_FOLD.search(text)
    ]
    # Users' names are ours, and no names of DuckDB's.
    assert [line for line in found if "user_name" not in line and "rolname" not in line] == []


def test_python_folds_names_as_duckdb_does() -> None:
    folding = {
        _place(path)
        for path in _files()
        if re.search(r"\.(?:lower|casefold)\(\)|str\.(?:lower|casefold)\b", path.read_text())
    }
    assert sorted(folding - FOLDS_OTHERS.keys()) == []


def test_the_patterns_find_what_they_are_for() -> None:
    relation, function, view, clients = BARE.values()
    assert relation.search("SELECT 1 FROM information_schema.tables")
    assert function.search("FROM duckdb_tables()") and function.search("FROM main.pragma_show('t')")
    assert not function.search("FROM system.main.duckdb_tables()")
    assert view.search("JOIN main.duckdb_tables AS t") and not view.search("FROM system.main.duckdb_views()")
    assert clients.search("FROM sqlite_master")
    assert UNICODE_FOLD.search("lower(c.table_name)") and UNICODE_FOLD.search("lower(z_n.nspname)")
