"""Writes the generated pages, docs/errors.md, docs/settings.md, docs/spark/options.md: `make docs`.

tests/test_docs.py fails where a page is not what this program would write.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from ducktail.engine import errors
from ducktail.engine.settings import numbers
from ducktail.spark_connector.options import OPTIONS, Option, Use
from ducktail.sql.settings import VARIABLES

HERE = Path(__file__).resolve().parent

ERRORS_HEAD = """\
# Errors

<!-- Made by `make docs` from engine/errors.py; do not edit. -->

Every error has an SQLSTATE, the same over the wire (psql: `\\set VERBOSITY verbose`, psycopg:
`error.sqlstate`) and in process (`error.sqlstate` of the PEP 249 class in the last column). The message
is lower case and names the object; DETAIL has the facts, HINT says what to do. DuckDB's own errors
get the SQLSTATE that PostgreSQL would give.

"""

SETTINGS_HEAD = """\
# Settings

<!-- Made by `make docs` from engine/settings.py and sql/settings.py; do not edit. -->

## Of the server

Each is a flag of `ducktail serve`, `--lock-timeout-ms 2000`; a variable of the environment, `DUCKTAIL_` and
the name in capitals, `DUCKTAIL_LOCK_TIMEOUT_MS=2000`; and a line of the configuration file,
`lock_timeout_ms = 2000`. A flag goes before the environment, the environment before the file, the file
before the default; an empty variable is not set, and in one directories are parted by `:`. In process they
are keywords of `ducktail.connect`.

The file is TOML without tables; `--config FILE` or `DUCKTAIL_CONFIG` names it:

```toml
path = "/var/lib/ducktail/shop.duckdb"
port = 5480
allow_dir = ["/data/in", "/data/out"]
lock_timeout_ms = 2000
```

A key that is not in the tables below is refused with file and line, and so is a value of the wrong type or
outside its bounds (22023). Settings are read once, at the start. `SELECT * FROM ducktail.settings` shows
each with its `source` (default, configuration file, environment variable, command line; in process
argument) and its `place`, such as `/etc/ducktail.toml:3`. `SHOW ALL` has them too, beside the session's
(source default, client, session). Who is no superuser is shown those of the first table, without places.

| flag | default | from | to | meaning |
|---|---:|---:|---:|---|
"""

COMMAND = """
Besides these `ducktail serve [PATH]` takes:

| flag | default | meaning |
|---|---|---|
| `PATH` | ducktail.duckdb | the DuckDB file, made where there is none; `path` in the file |
| `--config` | none | the configuration file; not in it |
| `--host` | 127.0.0.1 | where to listen; elsewhere than on loopback wants [TLS and users](security.md) |
| `--port` | 5480 | where to listen; 0 takes a free port |
| `--metrics-port` | none | port for [metrics and probes](operations.md#metrics-and-probes) |
| `--metrics-host` | 127.0.0.1 | where that port is; it asks nobody who he is |
| `--allow-dir` | none | files that SQL may reach ([operations.md](operations.md#files)); repeatable |
| `--tls-cert` | none | certificate with its chain, PEM; read again on SIGHUP ([TLS](operations.md#tls)) |
| `--tls-key` | none | the certificate's key, PEM, without a passphrase |
| `--cluster` | none | the [cluster.toml](cluster.md) of which this is a node; read again on SIGHUP |
| `--node` | none | this node's name in it; host and port are then those that it says |
| `--insecure` | no | take whoever reaches the port for somebody on this machine; only a flag |
| `--log-level` | info | least level that is logged, on standard error: debug, info, warning, error |
| `--log-format` | text | how [logs](operations.md#logs) are written: text, json |
| `--accept-loss` | no | serve a database that lacks acknowledged commits; only a flag |

`ducktail --version` says the version, `ducktail serve --help` lists the flags. `ducktail check`, `backup` and
`restore` are in [operations.md](operations.md).

## Of a session

`SET name = value`, `SHOW name`, `RESET name`, `SET LOCAL` inside a transaction, or in the options of a
connection (`options=-c lock_timeout=500`). What has no meaning here takes only the value that says
so. Times are milliseconds, or an interval such as `'5 s'`.

| setting | default | meaning |
|---|---|---|
"""

# What an error means, by its SQLSTATE and where one SQLSTATE has several, by its class.
WHEN = {
    "08001": "the owner of a remote partition cannot be reached",
    "08004": "a node or a placement of another cluster",
    "08006": "the owner of a remote partition was lost on the way",
    "08P01": "the client broke the wire protocol; the connection is closed",
    "0A000": "not supported, or not yet; the hint says what to use instead",
    "22000": "a value that does not fit, where nothing more exact is known",
    "22023": "a bad option, a bad partition number, an offset going back or past the end",
    "22P02": "a text that is no value of its type, or no position of a stream",
    "22003": "a number out of its type's range",
    "22012": "division by zero",
    "22P03": "a binary parameter that is no value of its type",
    "22P04": "a row of COPY FROM STDIN that is not of the format; CONTEXT has its line",
    "22021": "bytes that are no UTF-8, or a zero byte in a text",
    "21000": "a MERGE whose source has two rows for one row of the table",
    "23000": "a constraint, where nothing more exact is known",
    "23502": "NULL in a NOT NULL column",
    "23503": "a foreign key",
    "23505": "a duplicate key",
    "23514": "a CHECK constraint",
    "25001": "the statement cannot run inside a transaction, or not any more in this one",
    "25006": "a read-only transaction would write",
    "25P01": "the statement wants a transaction block and there is none",
    "25P02": "the transaction has failed: only ROLLBACK (or COMMIT, which rolls back) is answered",
    "25P03": "the session was ended because it idled in a transaction",
    "26000": "no such prepared statement",
    "34000": "no such cursor or portal",
    "28000": "this way in is not open: no TLS, no user, or a user who has been dropped",
    "28P01": "wrong password, or no such user",
    "3D000": "no such database: the name is the file's stem, `ducktail` or `postgres`",
    "3F000": "no such schema",
    "2BP01": "others depend on it: groups with unread events on a stream, a stream on a table",
    "40001": "another transaction wrote the same row or moved the same offset first; run it again",
    "42601": "syntax, with the position of the token",
    "42501": "not allowed: files, extensions, ATTACH, locked settings",
    "42939": "a name that is kept for DuckDB or ducktail: a schema `temp`, a user's table `duckdb_tables`",
    "42P01": "no such table or view",
    "42703": "no such column",
    "42883": "no such function",
    "42704": "no such stream, group, type or setting",
    "42P02": "a parameter without a value, or beyond $65535",
    "42710": "the name is taken",
    "42P07": "the table's name is taken",
    "42701": "a column twice",
    "42P05": "the prepared statement is there already",
    "42P03": "the cursor is there already",
    "42702": "a column that could be several",
    "42803": "an aggregate where none may be, or a column outside GROUP BY",
    "42804": "a value of another type than the column or the function wants",
    "42846": "no cast from the one type to the other",
    "42P18": "a parameter whose type cannot be told",
    "42809": "the object is of another kind than the statement wants",
    "53200": "over the memory budget",
    "53300": "too many connections: `max_connections`",
    "54000": "over a limit of the program",
    "55000": "the wrong state for it: nothing read yet, or a read without a read position",
    "55006": "in use: open in this process, with other settings, or by one that serves nobody",
    "55P02": "the setting cannot be changed now",
    "55P03": "no lock within `lock_timeout`: another session writes captured tables",
    "57014": "cancelled, or over `statement_timeout`",
    "57P01": "the server shuts down",
    "57P03": "the server is starting or stopping",
    "58030": "the disk, or a file that cannot be opened",
    "72000": "a gap: the next event of the read is no longer retained; says what is gone",
    "XX000": "a fault of ours: please report it",
    "XX001": "the file or the log is damaged, or acknowledged commits are missing",
}


def error_classes() -> list[type[errors.DucktailError]]:
    """The catalogue, in the order of its file."""
    classes = [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, errors.DucktailError) and item is not errors.DucktailError
    ]
    return sorted(classes, key=lambda item: inspect.getsourcelines(item)[1])


def errors_page() -> str:
    """docs/errors.md."""
    rows = ["| SQLSTATE | condition | when | PEP 249 |", "|---|---|---|---|"]
    for item in error_classes():
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", item.__name__.rstrip("_")).lower()
        rows.append(f"| {item.sqlstate} | {words} | {WHEN[item.sqlstate]} | {item.dbapi} |")
    return ERRORS_HEAD + "\n".join(rows) + "\n"


def settings_page() -> str:
    """docs/settings.md."""
    server = [
        f"| `--{item.name.replace('_', '-')}` | {item.default:,} | {item.metadata['low']:,} "
        f"| {item.metadata['high']:,} | {item.metadata['about']} |"
        for item in numbers()
    ]
    session = [
        f"| `{item.name}` | {item.default or '(empty)'} | {item.about} |" for item in VARIABLES.values()
    ]
    return SETTINGS_HEAD + "\n".join(server) + "\n" + COMMAND + "\n".join(session) + "\n"


OPTIONS_HEAD = """\
# Options of the data source

<!-- Made by `make docs` from spark_connector/options.py; do not edit. -->

`spark.read`, `readStream`, `write` and `writeStream` take them by `.option(name, value)` and
`.options(...)`, in any case of letters. An unknown one, and one that stands where it does not apply, is
refused by its name. A time has its unit: `'500 ms'`, `'10 s'`, `'1 min'`.
A timestamp has its zone: `'2026-01-31 12:00:00+00'`.

| option | default | applies to | meaning |
|---|---|---|---|
"""


def options_page() -> str:
    """docs/spark/options.md."""
    rows = []
    for option in OPTIONS:
        uses = "all" if option.uses == frozenset(Use) else ", ".join(u.value for u in Use if u in option.uses)
        rows.append(f"| `{option.name}` | {_default(option)} | {uses} | {option.meaning} |")
    return OPTIONS_HEAD + "\n".join(rows) + "\n"


def _default(option: Option) -> str:
    value = option.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g} s" if isinstance(value, float) else str(value)


PAGES = {"errors.md": errors_page, "settings.md": settings_page, "spark/options.md": options_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
