"""Generator of docs/errors.md, docs/settings.md and docs/spark/options.md: `make docs`.

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
is lower case and names the object; DETAIL has the facts, HINT suggests a remedy. DuckDB's own errors
have the SQLSTATE that PostgreSQL would use.

"""

SETTINGS_HEAD = """\
# Settings

<!-- Made by `make docs` from engine/settings.py and sql/settings.py; do not edit. -->

## Of the server

Each setting is a flag of `ducktail serve`, `--lock-timeout-ms 2000`; an environment variable, `DUCKTAIL_` and
the name in capitals, `DUCKTAIL_LOCK_TIMEOUT_MS=2000`; and a line of the configuration file,
`lock_timeout_ms = 2000`. Flags override the environment, the environment overrides the file, and the file
overrides the default. An empty variable counts as not set, and directories in a variable are separated by
`:`, networks by `,`. In process the settings are keywords of `ducktail.connect`.

The file is TOML without tables; `--config FILE` or `DUCKTAIL_CONFIG` names it:

```toml
path = "/var/lib/ducktail/shop.duckdb"
port = 5480
allow_dir = ["/data/in", "/data/out"]
lock_timeout_ms = 2000
```

A key that is not in the tables below is refused with file and line, as is a value of the wrong type or
outside its bounds (22023). Settings are read once, at the start. `SELECT * FROM ducktail.settings` shows
each setting with its `source` (default, configuration file, environment variable, command line; in process
argument) and its `place`, such as `/etc/ducktail.toml:3`. `SHOW ALL` shows them as well, together with those
of the session (source default, client, session). Users who are not superusers see the settings of the first
table only, without places.

| flag | default | from | to | meaning |
|---|---:|---:|---:|---|
"""

COMMAND = """
`ducktail serve [PATH]` has these additional flags:

| flag | default | meaning |
|---|---|---|
| `PATH` | ducktail.duckdb | the DuckDB file, created if it does not exist; `path` in the file |
| `--config` | none | the configuration file; cannot be set in it |
| `--host` | 127.0.0.1 | address to listen on; other than loopback, it requires [TLS and users](security.md) |
| `--port` | 5480 | port to listen on; 0 selects a free port |
| `--metrics-port` | none | port for [metrics and probes](operations.md#metrics-and-probes) |
| `--metrics-host` | 127.0.0.1 | address of that port, which has no authentication |
| `--http` | none | HOST:PORT of the [HTTP API](http.md); other than loopback, it requires TLS and users |
| `--http-cors` | none | [web origins](http.md#pages-of-other-origins) whose pages may use it; `*` is any |
| `--allow-dir` | none | directory that SQL may access ([operations.md](operations.md#files)); repeatable |
| `--allow-network` | none | network that [sinks](sinks.md#receivers-that-are-refused) may reach; repeatable |
| `--copy-to` | none | directory for [continuous copies](continuous_copies.md) of the database; repeatable |
| `--tls-cert` | none | certificate with its chain, PEM; reloaded on SIGHUP ([TLS](operations.md#tls)) |
| `--tls-key` | none | the certificate's key, PEM, without a passphrase |
| `--cluster` | none | the [cluster.toml](cluster.md) of the cluster; reloaded on SIGHUP |
| `--node` | none | this node's name in it; host and port are then taken from it |
| `--insecure` | no | treat every connection as local; only a flag |
| `--log-level` | info | lowest level that is logged, on standard error: debug, info, warning, error |
| `--log-format` | text | format of the [logs](operations.md#logs): text, json |
| `--accept-loss` | no | serve a database that lacks acknowledged commits; only a flag |

`ducktail --version` prints the version, and `ducktail serve --help` lists the flags. `ducktail check`,
`backup` and `restore` are described in [operations.md](operations.md).

## Of a session

Use `SET name = value`, `SHOW name`, `RESET name`, `SET LOCAL` inside a transaction, or the options of a
connection (`options=-c lock_timeout=500`). A setting without a function in ducktail accepts only the value
that describes ducktail's behaviour. Times are milliseconds, or an interval such as `'5 s'`.

| setting | default | meaning |
|---|---|---|
"""

# The cause of each error, by SQLSTATE.
WHEN = {
    "08001": "the owner of a remote partition cannot be reached, or a source refuses TLS",
    "08004": "a node or a placement of another cluster",
    "08006": "the connection to the owner of a remote partition, or to a source, was lost",
    "08P01": "the client broke the wire protocol; the connection is closed",
    "0A000": "not supported, or not yet; the hint names an alternative",
    "22000": "an invalid value, if no more specific class applies",
    "22023": "an invalid option, an invalid partition number, an offset that moves back or past the end",
    "22004": "NULL as an option of RAISE, or as the text of EXECUTE, in a DO block",
    "22P02": "a text that is not a value of its type, or not a position of a stream",
    "22003": "a number outside the range of its type",
    "22012": "division by zero",
    "22P03": "a binary parameter that is not a value of its type",
    "22P04": "a row of COPY FROM STDIN in an invalid format; CONTEXT has its line",
    "22P05": "a character has no equivalent in the encoding of the client or of the database",
    "22021": "bytes that are not UTF-8, or a zero byte in a text",
    "21000": "a MERGE whose source has two rows for one row of the table",
    "23000": "a constraint, if no more specific class applies",
    "23502": "NULL in a NOT NULL column",
    "23503": "a foreign key",
    "23505": "a duplicate key",
    "23514": "a CHECK constraint",
    "25001": "the statement cannot run inside a transaction, or cannot run in this one any more",
    "25006": "a write in a read-only transaction",
    "25P01": "the statement requires a transaction block",
    "25P02": "the transaction has failed: only ROLLBACK (or COMMIT, which rolls back) is answered",
    "25P03": "the session was terminated because it was idle in a transaction",
    "26000": "no such prepared statement",
    "34000": "no such cursor or portal",
    "28000": "the connection is not allowed: no TLS, no user, or a user who has been dropped",
    "28P01": "wrong password, or no such user",
    "3B001": "no such savepoint",
    "3D000": "no such database: the name is the file's stem, `ducktail`, `postgres` or `template1`",
    "3F000": "no such schema",
    "2BP01": "other objects depend on it: groups with unread events on a stream, a stream on a table",
    "40001": "another transaction wrote the same row or moved the same offset first; run it again",
    "42601": "a syntax error, with the position of the token",
    "42501": "not allowed: files, extensions, ATTACH, locked settings",
    "42939": "a name reserved for DuckDB or ducktail: a schema `temp`, a user's table `duckdb_tables`",
    "42P01": "no such table or view",
    "42703": "no such column",
    "42883": "no such function",
    "42704": "no such stream, group, type or setting",
    "42P02": "a parameter without a value, or beyond $65535",
    "42710": "the name is taken",
    "42P06": "the schema's name is taken",
    "42P16": "a table would have two primary keys",
    "42P07": "the name is taken by a table, a view, a sequence or an index",
    "42701": "a column that occurs twice",
    "42P05": "the prepared statement already exists",
    "42P03": "the cursor already exists",
    "42702": "an ambiguous column name",
    "42803": "an aggregate where none is allowed, or a column outside GROUP BY",
    "42804": "a value whose type does not match the column or the function",
    "42846": "no cast between the two types",
    "42P18": "a parameter whose type cannot be determined",
    "428C9": "a value for a column that is GENERATED ALWAYS AS IDENTITY",
    "42809": "the object is not of the kind that the statement requires",
    "53200": "the memory limit is exceeded",
    "53300": "too many connections: `max_connections`",
    "53400": "a source has no free replication slot or connection",
    "54000": "a limit of the program is exceeded",
    "55000": "a state that does not permit it: nothing read yet, a read without a read position, a source "
    "that cannot be read or no longer has its changes, a database in whose place a standby was promoted",
    "55006": "in use: open in this process with other settings, or open in a process that does not serve it",
    "55P02": "the setting cannot be changed now",
    "55P03": "no lock within `lock_timeout`: another session writes captured tables",
    "57014": "cancelled, or `statement_timeout` exceeded",
    "57P01": "the server is shutting down",
    "57P03": "the server is starting or stopping",
    "57R01": "a commit stands, and fewer than synchronous_copies targets have it in time",
    "57R02": "not executed: fewer than synchronous_copies targets have earlier commits in time",
    "58030": "an error of the disk, or a file that cannot be opened",
    "P0001": "RAISE in a DO block, unless it gives another SQLSTATE",
    "72000": "a gap: the next event of the read is no longer retained; the error reports the loss",
    "HV000": "an error of a source, under its own SQLSTATE where it has one",
    "XX000": "an internal error: please report it",
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

`spark.read`, `readStream`, `write` and `writeStream` accept these options by `.option(name, value)` and
`.options(...)`; names are not case-sensitive. An unknown option, and one that does not apply to the call, is
refused by name. A time has a unit: `'500 ms'`, `'10 s'`, `'1 min'`.
A timestamp has a zone: `'2026-01-31 12:00:00+00'`.

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
