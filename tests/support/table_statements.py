"""Random statements on a table of table_model, each with what it would change.

A statement is its SQL and a Python function of the rows that it meets; the function is the oracle, and
knows nothing of how ducktail captures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

from hypothesis import strategies as st
from table_model import BASE, IDS, Column, Effect, Row, Rows, Table, X, sql_of

Effects = Callable[[Rows], list[Effect]]


@dataclass(frozen=True)
class Statement:
    """SQL, and what it does to the rows that it meets.

    Args:
        way: how it is run, of model_sessions.WAYS.
        given: what comes besides the text: the pieces of COPY's rows, or a query that gives the rows.
        more: what further runs of it do, one after the other.
        form: its name when statements are counted.
        deletes: it is a DELETE, to a transaction that deletes and inserts again.
    """

    text: str
    effects: Effects
    way: str = "sql"
    given: Any = None
    more: tuple[Effects, ...] = ()
    form: str = ""
    deletes: bool = False


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
        st.integers(1, 4).map(lambda n: (f"v = v + {n}", lambda r: _with(r, 1, _add(r[1], n)))),
        st.integers(0, 9).map(lambda n: (f"v = {n}", lambda r: _with(r, 1, n))),
        # Volatile, with a value that is known: it must be evaluated once.
        st.just(("v = v + (1 + random()) :: int // 2 * 0 + 1", lambda r: _with(r, 1, _add(r[1], 1)))),
        st.sampled_from([None, *range(len(table.literals))]).map(
            lambda x: (f"{table.x} = {table.literal(x)}", lambda r: _with(r, X, x))
        ),
    ]
    if 2 not in table.key:
        free.append(st.just(("s = coalesce(s, '') || 'b'", lambda r: _with(r, 2, (r[2] or "") + "b"))))
    free += [_sets_added(place, column) for place, column in enumerate(table.columns) if place >= len(BASE)]
    return st.one_of(free)


def _sets_added(place: int, column: Column) -> st.SearchStrategy[Setter]:
    return values_of(column).map(
        lambda value: (f"{column.name} = {sql_of(value)}", lambda r: _with(r, place, value))
    )


def values_of(column: Column) -> st.SearchStrategy[int | str | None]:
    """Values of an added column."""
    words: list[int | str | None] = [None, "7", "8", "word"] if column.kind == "varchar" else [None, 7, 8, -1]
    return st.sampled_from(words)


def _with(row: Row, place: int, value: object) -> Row:
    return (*row[:place], value, *row[place + 1 :])


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
        *map(values_of, table.columns[len(BASE) :]),
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
        return Statement(f"insert into {table.called} values {values}", lambda _: _inserted(rows))
    # What is not named gets its default.
    base = [row[: len(BASE)] for row in rows]
    values, names = ", ".join(map(table.values, base)), ", ".join(table.names[: len(BASE)])
    text = f"insert into {table.called} by name select * from (values {values}) q({names})"
    known = [table.filled(row) for row in base]
    return Statement(text, lambda _: _inserted(known))


@st.composite
def insert_query(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    others = ", ".join(table.names[1:])
    text = f"insert into {table.called} select id + 12, {others} from {table.called} where {where}"

    def effects(rows: Rows) -> list[Effect]:
        return _inserted(((r[0] or 0) + 12, *r[1:]) for r in rows.elements() if matches(r))

    return Statement(text, effects)


@st.composite
def update(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    setting, change = draw(setters(table))
    text = f"update {table.called} set {setting} where {where}"
    return Statement(text, lambda rows: _updated(rows, matches, change))


@st.composite
def update_from(draw: st.DrawFn, table: Table) -> Statement:
    wanted = draw(st.dictionaries(st.sampled_from(IDS), st.integers(0, 9), min_size=1, max_size=3))
    values = ", ".join(f"({k}, {v})" for k, v in wanted.items())
    text = f"update {table.called} set v = q.b from (values {values}) q(a, b) where {table.called}.id = q.a"
    return Statement(
        text,
        lambda rows: _updated(rows, lambda r: r[0] in wanted, lambda r: _with(r, 1, wanted[r[0]])),
    )


@st.composite
def delete(draw: st.DrawFn, table: Table) -> Statement:
    where, matches = draw(predicates(table))
    text = f"delete from {table.called} where {where}"
    return Statement(text, lambda rows: _deleted(rows, matches), deletes=True)


@st.composite
def delete_using(draw: st.DrawFn, table: Table) -> Statement:
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
    values = ", ".join(f"({k})" for k in ids)
    text = f"delete from {table.called} using (values {values}) q(a) where id = q.a"
    return Statement(text, lambda rows: _deleted(rows, lambda r: r[0] in ids), deletes=True)


def truncate(table: Table) -> st.SearchStrategy[Statement]:
    text = f"truncate {table.called}"
    return st.just(Statement(text, lambda rows: _deleted(rows, lambda _: True), deletes=True))


@st.composite
def in_cte(draw: st.DrawFn, table: Table) -> Statement:
    inner: Statement = draw(st.one_of(insert(table), update(table), delete(table)))
    text = f"with w as ({inner.text} returning id) select count(*) from w"
    return Statement(text, inner.effects, deletes=inner.deletes)


@st.composite
def explained(draw: st.DrawFn, table: Table) -> Statement:
    inner: Statement = draw(st.one_of(insert(table), update(table), delete(table)))
    return Statement(f"explain analyze {inner.text}", inner.effects, deletes=inner.deletes)


def _by_key(table: Table, rows: Rows) -> dict[tuple[object, ...], Row]:
    return {table.key_of(row): row for row in rows}


@st.composite
def upsert(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    below = draw(st.one_of(st.none(), st.integers(0, 9)))
    key = ", ".join(BASE[i] for i in table.key)
    where, x = "" if below is None else f" where {table.called}.v < {below}", table.x
    text = (
        f"insert into {table.called} values {', '.join(map(table.values, given))} "
        f"on conflict ({key}) do update set v = coalesce(excluded.v, 0) + 1, {x} = excluded.{x}{where}"
    )

    def effects(rows: Rows) -> list[Effect]:
        old, found = _by_key(table, rows), []
        for row in _first_of_each(table, given):
            present = old.get(table.key_of(row))
            if present is None:
                found.append(Effect(None, row))
            elif below is None or (present[1] is not None and present[1] < below):
                found.append(Effect(present, _with(_with(present, 1, (row[1] or 0) + 1), X, row[X])))
        return found

    return Statement(text, effects)


@st.composite
def replace(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    text = f"insert or replace into {table.called} values {', '.join(map(table.values, given))}"

    def effects(rows: Rows) -> list[Effect]:
        old = _by_key(table, rows)
        return [Effect(old.get(table.key_of(row)), row) for row in _first_of_each(table, given)]

    return Statement(text, effects)


@st.composite
def ignore(draw: st.DrawFn, table: Table) -> Statement:
    given = draw(st.lists(rows_of(table), min_size=1, max_size=4))
    text = f"insert into {table.called} values {', '.join(map(table.values, given))} on conflict do nothing"

    def effects(rows: Rows) -> list[Effect]:
        old = _by_key(table, rows)
        return _inserted(row for row in _first_of_each(table, given) if table.key_of(row) not in old)

    return Statement(text, effects)


@st.composite
def merge(draw: st.DrawFn, table: Table) -> Statement:
    given = _first_of_each(table, draw(st.lists(rows_of(table), min_size=1, max_size=4)))
    given = [table.filled(row) for row in given]
    by_source, x = draw(st.booleans()), table.x
    values = ", ".join(table.values(row[: len(BASE)]) for row in given)
    on = " and ".join(f"t.{BASE[i]} = q.{BASE[i]}" for i in table.key)
    text = (
        f"merge into {table.called} t using (values {values}) q(id, v, s, x) "
        f"on {on} "
        "when matched and q.v is null then delete "
        "when matched and q.v = 0 then do nothing "
        f"when matched then update set v = t.v + q.v, {x} = q.x "
        "when not matched and q.v > 7 then do nothing "
        f"when not matched then insert (id, v, s, {x}) values (q.id, q.v, q.s, q.x)"
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
                found.append(Effect(present, _with(_with(present, 1, v), X, row[X])))
            elif present is None and not (row[1] is not None and row[1] > 7):
                found.append(Effect(None, row))
        if by_source:
            found += [Effect(row, None) for row in old.values() if row[1] is not None and row[1] > 8]
        return found

    return Statement(text, effects)


@st.composite
def move_key(draw: st.DrawFn, table: Table) -> Statement:
    old, new = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
    text = f"update {table.called} set id = {new} where id = {old}"
    return Statement(text, lambda rows: _updated(rows, lambda r: r[0] == old, lambda r: (new, *r[1:])))


@st.composite
def swap_keys(draw: st.DrawFn, table: Table) -> Statement:
    a, b = draw(st.sampled_from(IDS)), draw(st.sampled_from(IDS))
    text = f"update {table.called} set id = case id when {a} then {b} else {a} end where id in ({a}, {b})"
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
    places = draw(st.sampled_from([(0, 1, 2, 3), (3, 1, 0, 2), tuple(range(len(table.columns)))]))
    if len(places) == len(BASE):
        rows = [table.filled(row) for row in rows]
    csv = draw(st.booleans())
    lines = [(_csv if csv else _text)([table.texts(row)[place] for place in places]) for row in rows]
    listed = ", ".join(table.names[place] for place in places)
    text = f"copy {table.called} ({listed}) from stdin"
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
    text = f"copy {table.called} from '{{file}}' ({options if form == 'csv' else 'format parquet'})"
    query = table.query(rows)
    return Statement(text, lambda _: _inserted(rows), "file", query, form=f"copy_file {form}")


@st.composite
def frame(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    where, matches = draw(predicates(table))
    way = draw(st.sampled_from(["frame", "reader"]))
    text = f"insert into {table.called} select * from given where {where}"
    query = table.query(rows)
    return Statement(text, lambda _: _inserted(filter(matches, rows)), way, query, form=f"insert from {way}")


@st.composite
def append(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    if draw(st.booleans()):
        return Statement(table.called, lambda _: _inserted(rows), "append", table.query(rows))
    known = [table.filled((row[0], None, row[2], None)) for row in rows]
    query = f"select s, id from ({table.query(rows)})"
    return Statement(table.called, lambda _: _inserted(known), "append by name", query, form="append by name")


@st.composite
def executemany(draw: st.DrawFn, table: Table) -> Statement:
    rows = draw(_given(table))
    what = draw(st.sampled_from(["insert", "update", "delete"]))
    texts = {
        "insert": f"insert into {table.called} values ({', '.join('?' * len(table.columns))})",
        "update": f"update {table.called} set v = ?, {table.x} = ? where id = ?",
        "delete": f"delete from {table.called} where id = ?",
    }
    taken = {"insert": "*", "update": f"v, {table.x}, id", "delete": "id"}
    runs = [_RUNS[what](row) for row in rows]
    query = f"select {taken[what]} from ({table.query(rows)})"
    form = f"executemany {what}"
    return Statement(texts[what], runs[0], "many", query, tuple(runs[1:]), form, what == "delete")


# What a run of executemany does, from the row that its parameters are of.
_RUNS: dict[str, Callable[[Row], Effects]] = {
    "insert": lambda row: lambda _: _inserted([row]),
    "update": lambda row: (
        lambda rows: _updated(rows, lambda r: r[0] == row[0], lambda r: _with(_with(r, 1, row[1]), X, row[X]))
    ),
    "delete": lambda row: lambda rows: _deleted(rows, lambda r: r[0] == row[0]),
}


@st.composite
def refresh(draw: st.DrawFn, table: Table, whole: bool) -> Statement:
    """CREATE OR REPLACE TABLE: some of its rows, some of them changed, and others.

    Args:
        whole: each old row is a delete and each new one an insert (minimal_changes = 'none').
    """
    given = draw(st.lists(rows_of(table), max_size=4, unique_by=draw(st.sampled_from(_UNIQUE))(table)))
    more = draw(st.sampled_from([0, 12]))
    given = [(row[0] + more, *row[1:]) for row in given]
    where, matches = draw(st.one_of(st.just(("true", lambda row: True)), predicates(table)))
    changed, n = draw(predicates(table)), draw(st.integers(0, 2))
    kind = table.columns[1].kind
    v = f"(case when {changed[0]} then v + {n} else v end)::{kind} as v"
    names = ", ".join(v if name == "v" else name for name in table.names)
    text = f"create or replace table {table.called} as select {names} from {table.called} where {where}"
    if given:
        text += f" union all {table.query(given)}"

    def effects(rows: Rows) -> list[Effect]:
        kept = [_with(r, 1, _add(r[1], n)) if changed[1](r) else r for r in rows.elements() if matches(r)]
        new = Counter([*kept, *given])
        if whole or len({table.key_of(row) for row in new}) < sum(new.values()):
            return [*_deleted(rows, lambda _: True), *_inserted(new.elements())]
        return table.difference(rows, new)

    return Statement(text, effects, form="refresh")


@st.composite
def refreshed(draw: st.DrawFn, table: Table, rows: Iterable[Row]) -> list[Row]:
    """Some of these rows, some of them changed, and others."""
    changed, n = draw(predicates(table)), draw(st.integers(0, 2))
    again = [_with(row, 1, _add(row[1], n)) if changed[1](row) else row for row in rows]
    return [row for row in again if draw(st.integers(0, 4))] + draw(st.lists(rows_of(table), max_size=2))


@st.composite
def refresh_steps(draw: st.DrawFn, table: Table, rows: Rows) -> list[Statement]:
    """DELETE or TRUNCATE, and then INSERT of what `rows` would be with some of them changed."""
    first = draw(st.sampled_from([truncate(table), delete(table)]).flatmap(lambda made: made))
    gone = [effect.old for effect in first.effects(rows) if effect.old is not None]
    kept = draw(refreshed(table, gone))
    steps = [replaced(first, form="refresh: delete")]
    if kept:
        text = f"insert into {table.called} values {', '.join(map(table.values, kept))}"
        steps.append(Statement(text, lambda _: _inserted(kept), form="refresh: insert"))
    return steps


def past_ducktail(table: Table) -> st.SearchStrategy[Statement]:
    """What plain DuckDB may do to a table."""
    return _one_of(table, insert, update, update_from, delete, delete_using)
