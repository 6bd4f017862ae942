"""A plain model of a captured table: rows in a Counter, and statements that say what they would change.

A statement is its SQL and a Python function of the rows that it meets; the function is the oracle, and
knows nothing of how ducktail captures. Every table has the columns id, v, s and x, x of a type of its
own whose values are places in a list of literals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

from hypothesis import strategies as st

# id, v, s, and the place of x among the literals (None: NULL).
Row = tuple[int | None, int | None, str | None, int | None]
Rows = Counter[Row]
COLUMNS = ("id", "v", "s", "x")
IDS = range(12)

# The types of x, each with literals that are all different.
TYPES: dict[str, tuple[str, ...]] = {
    "double": ("1.5", "'nan'::double", "'inf'::double", "1e300", "0.1"),
    "decimal(38,10)": ("12345678901234567890.0000000001", "-0.5", "0"),
    "int[]": ("[1, null]", "[]", "[7]"),
    "struct(a bigint, b varchar)": ("{'a': 9007199254740993, 'b': 'x'}", "{'a': null, 'b': '\"'}"),
    "timestamptz": ("timestamptz '2026-01-01 00:00:00.000001+00'", "timestamptz '1969-12-31 23:59:59+00'"),
    "hugeint": ("170141183460469231731687303715884105727", "-1"),
    "blob": ("'\\x00\\xff'::blob", "'abc'::blob"),
    "json": ("'{\"a\": [1, 2]}'::json", "'3'::json"),
    "map(varchar, int)": ("map {'k': 1}", "map {}"),
    "varchar": ("'plain'", "'it''s'", "''", "'ß\U0001f986'"),
}

# The same values as PostgreSQL writes them in COPY, before a format's own escapes.
TEXTS: dict[str, tuple[str, ...]] = {
    "double": ("1.5", "NaN", "Infinity", "1e300", "0.1"),
    "decimal(38,10)": ("12345678901234567890.0000000001", "-0.5", "0"),
    "int[]": ("{1,NULL}", "{}", "{7}"),
    "struct(a bigint, b varchar)": ('{"a": 9007199254740993, "b": "x"}', '{"a": null, "b": "\\""}'),
    "timestamptz": ("2026-01-01 00:00:00.000001+00", "1969-12-31 23:59:59+00"),
    "hugeint": ("170141183460469231731687303715884105727", "-1"),
    "blob": ("\\x00ff", "\\x616263"),
    "json": ('{"a": [1, 2]}', "3"),
    "map(varchar, int)": ('{"k": 1}', "{}"),
    "varchar": ("plain", "it's", "", "ß\U0001f986"),
}


class Duplicate(Exception):
    """The statement would leave two rows of one key."""


@dataclass(frozen=True)
class Effect:
    """One row that a statement changes: old alone is a delete, new alone an insert, both an update."""

    old: Row | None
    new: Row | None


@dataclass(frozen=True)
class Table:
    """A table of the model; `key` are the places of its primary key's columns."""

    name: str
    kind: str
    key: tuple[int, ...]

    @property
    def literals(self) -> tuple[str, ...]:
        return TYPES[self.kind]

    @property
    def ddl(self) -> str:
        key = f", primary key ({', '.join(COLUMNS[i] for i in self.key)})" if self.key else ""
        return f"create table {self.name} (id int, v int, s varchar, x {self.kind}{key})"

    def key_of(self, row: Row) -> tuple[object, ...]:
        return tuple(row[i] for i in self.key) if self.key else row

    def after(self, rows: Rows, effects: Iterable[Effect]) -> Rows:
        """The rows when the effects have taken place.

        Raises:
            Duplicate: two of them would have one key.
        """
        found = Counter(rows)
        for effect in effects:
            if effect.old is not None:
                assert found[effect.old] > 0, "a statement changes rows that are there"
                found[effect.old] -= 1
            if effect.new is not None:
                found[effect.new] += 1
        found = +found
        if self.key and len({self.key_of(row) for row in found}) < sum(found.values()):
            raise Duplicate
        return found

    def literal(self, x: int | None) -> str:
        return "null" if x is None else self.literals[x]

    def values(self, row: Row) -> str:
        id_, v, s, x = row
        return f"({_sql(id_)}, {_sql(v)}, {_sql(s)}, {self.literal(x)})"

    def query(self, rows: Iterable[Row]) -> str:
        """These rows as a query with the table's types, which any DuckDB can run."""
        values = ", ".join(map(self.values, rows))
        typed = f"id::int as id, v::int as v, s::varchar as s, x::{self.kind} as x"
        return f"select {typed} from (values {values}) q(id, v, s, x)"

    def texts(self, row: Row) -> tuple[str | None, ...]:
        """A row as COPY's texts."""
        *rest, x = row
        own = None if x is None else TEXTS[self.kind][x]
        return (*(None if value is None else str(value) for value in rest), own)


def _sql(value: int | str | None) -> str:
    return "null" if value is None else repr(value)


Effects = Callable[[Rows], list[Effect]]


@dataclass(frozen=True)
class Statement:
    """SQL, and what it does to the rows that it meets.

    Args:
        way: how it is run, of model_sessions.WAYS.
        given: what comes besides the text: the pieces of COPY's rows, or a query that gives the rows.
        more: what further runs of it do, one after the other.
        form: its name when statements are counted.
    """

    text: str
    effects: Effects
    way: str = "sql"
    given: Any = None
    more: tuple[Effects, ...] = ()
    form: str = ""


Predicate = tuple[str, Callable[[Row], bool]]
Setter = tuple[str, Callable[[Row], Row]]


def predicates(table: Table, alias: str = "") -> st.SearchStrategy[Predicate]:
    """WHERE clauses; NULL is not true."""
    a = f"{alias}." if alias else ""
    ids = st.sampled_from(IDS)
    return st.one_of(
        st.just(("true", lambda row: True)),
        ids.map(lambda k: (f"{a}id = {k}", lambda row: row[0] == k)),
        st.lists(ids, min_size=1, max_size=3).map(
            lambda ks: (f"{a}id in ({', '.join(map(str, ks))})", lambda row: row[0] in ks)
        ),
        st.integers(0, 9).map(lambda n: (f"{a}v > {n}", lambda row: row[1] is not None and row[1] > n)),
        st.just((f"{a}v % 2 = 0", lambda row: row[1] is not None and row[1] % 2 == 0)),
        st.just((f"{a}v is null", lambda row: row[1] is None)),
        st.just((f"{a}s = 'a'", lambda row: row[2] == "a")),
    )


def setters(table: Table) -> st.SearchStrategy[Setter]:
    """SET clauses that leave the key alone."""
    free = [
        st.integers(1, 4).map(lambda n: (f"v = v + {n}", lambda r: (r[0], _add(r[1], n), r[2], r[3]))),
        st.integers(0, 9).map(lambda n: (f"v = {n}", lambda r: (r[0], n, r[2], r[3]))),
        # Volatile, with a value that is known: it must be evaluated once.
        st.just(("v = v + (1 + random()) :: int // 2 * 0 + 1", lambda r: (r[0], _add(r[1], 1), r[2], r[3]))),
        st.sampled_from([None, *range(len(table.literals))]).map(
            lambda x: (f"x = {table.literal(x)}", lambda r: (r[0], r[1], r[2], x))
        ),
    ]
    if 2 not in table.key:
        free.append(st.just(("s = coalesce(s, '') || 'b'", lambda r: (r[0], r[1], (r[2] or "") + "b", r[3]))))
    return st.one_of(free)


def _add(value: int | None, n: int) -> int | None:
    return None if value is None else value + n


def rows_of(table: Table) -> st.SearchStrategy[Row]:
    """New rows."""
    texts = st.sampled_from(["a", "b", "c"]) if 2 in table.key else st.sampled_from(["a", "b", None])
    return st.tuples(
        st.sampled_from(IDS),
        st.one_of(st.none(), st.integers(0, 9)),
        texts,
        st.sampled_from([None, *range(len(table.literals))]),
    )


def _inserted(rows: Iterable[Row]) -> list[Effect]:
    return [Effect(None, row) for row in rows]


def _updated(rows: Rows, matches: Callable[[Row], bool], change: Callable[[Row], Row]) -> list[Effect]:
    return [Effect(row, change(row)) for row in rows.elements() if matches(row)]


def _deleted(rows: Rows, matches: Callable[[Row], bool]) -> list[Effect]:
    return [Effect(row, None) for row in rows.elements() if matches(row)]


def _first_of_each(table: Table, rows: Iterable[Row]) -> list[Row]:
    """The first row of each key: what DuckDB's upsert takes."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        found.setdefault(table.key_of(row), row)
    return list(found.values())


def statements(table: Table) -> st.SearchStrategy[Statement]:
    """Any statement on a table that is whole in its text."""
    return _one_of(
        table, insert, insert_query, update, update_from, delete, delete_using, truncate, in_cte, explained
    )


def keyed_statements(table: Table) -> st.SearchStrategy[Statement]:
    """A statement that meets rows by their key."""
    moves = (move_key, swap_keys) if table.key == (0,) else ()
    return _one_of(table, upsert, upsert, replace, ignore, merge, merge, *moves)


def loads(table: Table, wire: bool) -> st.SearchStrategy[Statement]:
    """A statement whose rows come beside it, to a session of the wire or one of this process."""
    own = (copy_stdin, copy_stdin) if wire else (frame, append, executemany)
    return _one_of(table, copy_file, *own)


@st.composite
def _one_of(
    draw: st.DrawFn, table: Table, *makers: Callable[[Table], st.SearchStrategy[Statement]]
) -> Statement:
    maker = draw(st.sampled_from(makers))
    found = draw(maker(table))
    return replaced(found, form=found.form or maker.__name__)


@st.composite
def insert(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    values = ", ".join(map(table.values, rows))
    if draw(st.booleans()):
        return Statement(f"insert into {table.name} values {values}", lambda _: _inserted(rows))
    names = "id, v, s, x"
    text = f"insert into {table.name} by name select * from (values {values}) q({names})"
    return Statement(text, lambda _: _inserted(rows))


@st.composite
def insert_query(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    text = f"insert into {table.name} select id + 12, v, s, x from {table.name} where {where}"

    def effects(rows: Rows) -> list[Effect]:
        return _inserted(((r[0] or 0) + 12, *r[1:]) for r in rows.elements() if matches(r))

    return Statement(text, effects)


@st.composite
def update(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    setting, change = draw(setters(table))
    text = f"update {table.name} set {setting} where {where}"
    return Statement(text, lambda rows: _updated(rows, matches, change))


@st.composite
def update_from(draw: st.DrawFn, table: Table) -> Statement:
    wanted = draw(st.dictionaries(st.sampled_from(IDS), st.integers(0, 9), min_size=1, max_size=3))
    values = ", ".join(f"({k}, {v})" for k, v in wanted.items())
    text = f"update {table.name} set v = q.b from (values {values}) q(a, b) where {table.name}.id = q.a"
    return Statement(
        text,
        lambda rows: _updated(
            rows, lambda r: r[0] in wanted, lambda r: (r[0], wanted[r[0] or 0], r[2], r[3])
        ),
    )


@st.composite
def delete(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    return Statement(f"delete from {table.name} where {where}", lambda rows: _deleted(rows, matches))


@st.composite
def delete_using(draw: st.DrawFn, table: Table) -> Statement:
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
    values = ", ".join(f"({k})" for k in ids)
    text = f"delete from {table.name} using (values {values}) q(a) where id = q.a"
    return Statement(text, lambda rows: _deleted(rows, lambda r: r[0] in ids))


def truncate(table: Table) -> st.SearchStrategy[Statement]:
    return st.just(Statement(f"truncate {table.name}", lambda rows: _deleted(rows, lambda _: True)))


@st.composite
def in_cte(draw: st.DrawFn, table: Table) -> Statement:
    inner: Statement = draw(st.one_of(insert(table), update(table), delete(table)))
    return Statement(f"with w as ({inner.text} returning id) select count(*) from w", inner.effects)


@st.composite
def explained(draw: st.DrawFn, table: Table) -> Statement:
    inner: Statement = draw(st.one_of(insert(table), update(table), delete(table)))
    return Statement(f"explain analyze {inner.text}", inner.effects)


def _by_key(table: Table, rows: Rows) -> dict[tuple[object, ...], Row]:
    return {table.key_of(row): row for row in rows}


@st.composite
def upsert(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    below = draw(st.one_of(st.none(), st.integers(0, 9)))
    key = ", ".join(COLUMNS[i] for i in table.key)
    where = "" if below is None else f" where {table.name}.v < {below}"
    text = (
        f"insert into {table.name} values {', '.join(map(table.values, given))} "
        f"on conflict ({key}) do update set v = coalesce(excluded.v, 0) + 1, x = excluded.x{where}"
    )

    def effects(rows: Rows) -> list[Effect]:
        old, found = _by_key(table, rows), []
        for row in _first_of_each(table, given):
            present = old.get(table.key_of(row))
            if present is None:
                found.append(Effect(None, row))
            elif below is None or (present[1] is not None and present[1] < below):
                found.append(Effect(present, (present[0], (row[1] or 0) + 1, present[2], row[3])))
        return found

    return Statement(text, effects)


@st.composite
def replace(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    text = f"insert or replace into {table.name} values {', '.join(map(table.values, given))}"

    def effects(rows: Rows) -> list[Effect]:
        old = _by_key(table, rows)
        return [Effect(old.get(table.key_of(row)), row) for row in _first_of_each(table, given)]

    return Statement(text, effects)


@st.composite
def ignore(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    text = f"insert into {table.name} values {', '.join(map(table.values, given))} on conflict do nothing"

    def effects(rows: Rows) -> list[Effect]:
        old = _by_key(table, rows)
        return _inserted(row for row in _first_of_each(table, given) if table.key_of(row) not in old)

    return Statement(text, effects)


@st.composite
def merge(draw: st.DrawFn, table: Table) -> Statement:
    given = _first_of_each(table, draw(st.lists(rows_of(table), min_size=1, max_size=4)))
    by_source = draw(st.booleans())
    on = " and ".join(f"t.{COLUMNS[i]} = q.{COLUMNS[i]}" for i in table.key)
    text = (
        f"merge into {table.name} t using (values {', '.join(map(table.values, given))}) q(id, v, s, x) "
        f"on {on} "
        "when matched and q.v is null then delete "
        "when matched and q.v = 0 then do nothing "
        "when matched then update set v = t.v + q.v, x = q.x "
        "when not matched and q.v > 7 then do nothing "
        "when not matched then insert values (q.id, q.v, q.s, q.x)"
        + (" when not matched by source and t.v > 8 then delete" if by_source else "")
    )

    def effects(rows: Rows) -> list[Effect]:
        old, found = _by_key(table, rows), []
        for row in given:
            present = old.pop(table.key_of(row), None)
            if present is not None and row[1] is None:
                found.append(Effect(present, None))
            elif present is not None and row[1] != 0:
                v = None if present[1] is None else present[1] + (row[1] or 0)
                found.append(Effect(present, (present[0], v, present[2], row[3])))
            elif present is None and not (row[1] is not None and row[1] > 7):
                found.append(Effect(None, row))
        if by_source:
            found += [Effect(row, None) for row in old.values() if row[1] is not None and row[1] > 8]
        return found

    return Statement(text, effects)


@st.composite
def move_key(draw: st.DrawFn, table: Table) -> Statement:
    old, new = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
    text = f"update {table.name} set id = {new} where id = {old}"
    return Statement(text, lambda rows: _updated(rows, lambda r: r[0] == old, lambda r: (new, *r[1:])))


@st.composite
def swap_keys(draw: st.DrawFn, table: Table) -> Statement:
    a, b = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
    text = f"update {table.name} set id = case id when {a} then {b} else {a} end where id in ({a}, {b})"
    return Statement(
        text,
        lambda rows: _updated(rows, lambda r: r[0] in (a, b), lambda r: (b if r[0] == a else a, *r[1:])),
    )


@st.composite
def _given(draw: st.DrawFn, table: Table) -> list[Row]:
    """Rows that mostly meet none of their key."""
    rows = st.lists(rows_of(table), min_size=1, max_size=6, unique_by=draw(st.sampled_from(_UNIQUE))(table))
    more = draw(st.sampled_from([0, 12, 24, 36]))
    return [((row[0] or 0) + more, *row[1:]) for row in draw(rows)]


_UNIQUE: tuple[Callable[[Table], Callable[[Row], object] | None], ...] = (
    lambda table: None,
    lambda table: table.key_of,
    lambda table: table.key_of,
)


@st.composite
def copy_stdin(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    places = draw(st.sampled_from([(0, 1, 2, 3), (3, 1, 0, 2)]))
    csv = draw(st.booleans())
    lines = [(_csv if csv else _text)([table.texts(row)[place] for place in places]) for row in rows]
    listed = ", ".join(COLUMNS[place] for place in places)
    text = f"copy {table.name} ({listed}) from stdin"
    if csv:
        text, lines = f"{text} (format csv, header)", [listed, *lines]
    data = "".join(f"{line}\n" for line in lines).encode()
    size = draw(st.integers(1, len(data)))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    form = f"copy_stdin {'csv' if csv else 'text'}"
    return Statement(text, lambda _: _inserted(rows), "stdin", pieces, form=form)


def _text(values: Iterable[str | None]) -> str:
    return "\t".join("\\N" if value is None else value.replace("\\", "\\\\") for value in values)


def _csv(values: Iterable[str | None]) -> str:
    return ",".join("" if value is None else '"' + value.replace('"', '""') + '"' for value in values)


@st.composite
def copy_file(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    # Parquet has no integers of 128 bits.
    forms = ["csv", "parquet"] if table.kind != "hugeint" else ["csv"]
    form = draw(st.sampled_from(forms))
    options = "format csv, header, delimiter ',', quote '\"', escape '\"', nullstr 'nil'"
    text = f"copy {table.name} from '{{file}}' ({options if form == 'csv' else 'format parquet'})"
    query = table.query(rows)
    return Statement(text, lambda _: _inserted(rows), "file", query, form=f"copy_file {form}")


@st.composite
def frame(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    where, matches = draw(predicates(table))
    way = draw(st.sampled_from(["frame", "reader"]))
    text = f"insert into {table.name} select * from given where {where}"
    query = table.query(rows)
    return Statement(text, lambda _: _inserted(filter(matches, rows)), way, query, form=f"insert from {way}")


@st.composite
def append(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    if draw(st.booleans()):
        return Statement(table.name, lambda _: _inserted(rows), "append", table.query(rows))
    known: list[Row] = [(id_, None, s, None) for id_, _, s, _ in rows]
    query = f"select s, id from ({table.query(rows)})"
    return Statement(table.name, lambda _: _inserted(known), "append by name", query, form="append by name")


@st.composite
def executemany(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    what = draw(st.sampled_from(["insert", "update", "delete"]))
    texts = {
        "insert": f"insert into {table.name} values (?, ?, ?, ?)",
        "update": f"update {table.name} set v = ?, x = ? where id = ?",
        "delete": f"delete from {table.name} where id = ?",
    }
    taken = {"insert": "*", "update": "v, x, id", "delete": "id"}
    runs = [_RUNS[what](row) for row in rows]
    query = f"select {taken[what]} from ({table.query(rows)})"
    return Statement(texts[what], runs[0], "many", query, tuple(runs[1:]), f"executemany {what}")


# What a run of executemany does, from the row that its parameters are of.
_RUNS: dict[str, Callable[[Row], Effects]] = {
    "insert": lambda row: lambda _: _inserted([row]),
    "update": lambda row: (
        lambda rows: _updated(rows, lambda r: r[0] == row[0], lambda r: (r[0], row[1], r[2], row[3]))
    ),
    "delete": lambda row: lambda rows: _deleted(rows, lambda r: r[0] == row[0]),
}
