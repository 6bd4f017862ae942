"""Random DML on sixteen kinds of tables, for tests/property/test_shapes.py and test_streamed_tables.py."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True)
class TableKind:
    """A kind of table: its columns' types are keys of VALUES."""

    label: str
    ddl: str
    columns: dict[str, str]
    unique: tuple[tuple[str, ...], ...] = ()
    table: str = "t"
    schema: str = "main"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    null_keys: bool = False  # DuckDB keeps any one of several rows whose unique key is NULL
    volatile: bool = False

    @property
    def name(self) -> str:
        return self.table if self.schema == "main" else f"{self.schema}.{self.table}"


ODD = {
    '"sel ect"': "int",
    '"from"': "int",
    '"ß.:"': "varchar",
    "o1": "int",
    '"n1"': "varchar",
    '"excluded"': "int",
    '"q""q"': "int",
    "lsn": "int",
}
NESTED = {
    "id": "int",
    "l": "int[]",
    "st": "struct(a int, b varchar)",
    "m": "map(varchar, int)",
    "e": "enum('a', 'b', 'c')",
    "bl": "blob",
    "iv": "interval",
    "j": "json",
    "u": "uuid",
    "tz": "timestamptz",
    "f": "double",
    "ar": "int[2]",
    "h": "hugeint",
    "dl": "double[]",
}
NOCASE, NOACCENT = "varchar collate nocase", "varchar collate noaccent.nocase"
UNION, UNIONS = "union(num int, str varchar)", "union(a int, b double)[]"
PLAIN = {"id": "int", "v": "int", "s": "varchar"}
# Two values can be equal here and yet not the same; an update in place by an equal one stays undone.
INEXACT = {"id": "int", "f": "double", "r": "float", "iv": "interval", "st": "struct(d double)"}


def _columns(columns: dict[str, str], more: str = "") -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) + more


KINDS = (
    TableKind(
        "primary key",
        "create table t(id int primary key, v int, s varchar default 'd', d decimal(10,2))",
        {**PLAIN, "d": "decimal(10,2)"},
        (("id",),),
    ),
    TableKind(
        "composite key",
        "create table t(a int, b varchar default 'a', v int, s varchar, primary key(b, a))",
        {"a": "int", "b": "varchar", "v": "int", "s": "varchar"},
        (("b", "a"),),
    ),
    TableKind(
        "no key",
        "create table t(a int, v int default 7, s varchar)",
        {"a": "int", "v": "int", "s": "varchar"},
    ),
    TableKind(
        "unique, check, not null",
        "create table t(id int primary key, e int unique, v int check (v < 8), s text not null default 'n')",
        {"id": "int", "e": "int", "v": "int", "s": "varchar"},
        (("id",), ("e",)),
    ),
    TableKind(
        "unique index with NULLs",
        "create table t(id int, e int, v int, s varchar)",
        {"id": "int", "e": "int", "v": "int", "s": "varchar"},
        (("e",),),
        after=("create unique index ue on t(e)",),
        null_keys=True,
    ),
    TableKind(
        "odd names",
        f'create table "T able.x"({_columns(ODD)}, primary key("sel ect"))',
        ODD,
        (('"sel ect"',),),
        table='"T able.x"',
    ),
    TableKind("nested types", f"create table t({_columns(NESTED)}, primary key(id))", NESTED, (("id",),)),
    TableKind("inexact types", f"create table t({_columns(INEXACT)}, primary key(id))", INEXACT, (("id",),)),
    TableKind(
        "generated columns",
        "create table t(id int primary key, g2 int as (g + 1), v int, g int as (v * 2), s varchar)",
        PLAIN,
        (("id",),),
        generated=("g", "g2"),
    ),
    TableKind(
        "other schema",
        "create table s2.t(id int primary key, v int, s varchar default 'd')",
        PLAIN,
        (("id",),),
        schema="s2",
    ),
    TableKind(
        "sequences",
        "create table t(id int default nextval('sq') primary key, v int default (nextval('sq') * 2), s text)",
        PLAIN,
        (("id",),),
        volatile=True,
    ),
    TableKind(
        "foreign key parent",
        "create table p(id int primary key, v int, s varchar)",
        PLAIN,
        (("id",),),
        table="p",
        after=(
            "create table child(id int primary key, pid int references p(id))",
            "insert into child select id, id from p where id in (1, 3)",
        ),
    ),
    TableKind(
        "foreign key child",
        "create table child(id int primary key, v int references p(id), s varchar)",
        PLAIN,
        (("id",),),
        table="child",
        before=("create table p(id int primary key)", "insert into p from range(10)"),
    ),
    TableKind(
        "collations",
        "create table t(id int primary key, v int, k varchar collate nocase unique, "
        "s varchar collate noaccent.nocase, same boolean as (s = 'e'))",
        {"id": "int", "v": "int", "k": NOCASE, "s": NOACCENT},
        (("id",), ("k",)),
        generated=("same", "k = 'A'", "s in ('E')"),
    ),
    TableKind(
        "collated key",
        "create table t(k varchar collate nocase, v int, s varchar, primary key (K))",
        {"k": NOCASE, "v": "int", "s": "varchar"},
        (("k",),),
    ),
    TableKind(
        "unions",
        f"create table t(ID int, u {UNION}, l {UNIONS}, v int, ul uuid[], sh struct(h hugeint[], b bit), "
        "jl json[], primary key (id))",
        {
            "id": "int",
            "u": UNION,
            "l": UNIONS,
            "v": "int",
            "ul": "uuid[]",
            "sh": "struct(h hugeint[], b bit)",
            "jl": "json[]",
        },
        (("id",),),
        generated=("union_tag(u)", "union_tag(l[1])"),
    ),
)

VALUES = {
    "varchar": ["'a'", "'b'", "'it''s'", "null", "'x' || 'y'", "'from where returning'", "42", "$$do$$"],
    "decimal(10,2)": ["1.239", "5", "null", "'3.14'", "-2.5"],
    "int[]": ["[1, 2]", "[]", "null", "list_value(1, null)"],
    "struct(a int, b varchar)": ["{'a': 1, 'b': 'x'}", "row(2, 'z')", "null"],
    "map(varchar, int)": ["map {'k': 1}", "map {}", "null"],
    "enum('a', 'b', 'c')": ["'a'", "'b'", "null", "'c'", "'a'", "'b'", "null", "'c'", "'a'", "'b'", "'zz'"],
    "blob": ["'\\x00\\xff'::blob", "'abc'::blob", "null"],
    "interval": ["interval 1 month", "interval 30 day", "null"],
    "json": ["'{\"a\": 1}'", "null", "'[1, 2]'"],
    "uuid": ["'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "null"],
    "timestamptz": ["timestamptz '2026-01-01 00:00:00+00'", "null"],
    "double": ["1.5", "'nan'::double", "-0.0::double", "0.0", "null"],
    "int[2]": ["[1, 2]", "null"],
    "hugeint": ["170141183460469231731687303715884105727", "5", "null"],
    "float": ["-0.0::float", "0.0", "2.5"],
    "struct(d double)": ["{'d': 0.0}", "{'d': -0.0::double}", "null"],
    NOCASE: ["'a'", "'A'", "'b'", "'B'", "'ab'", "'aB'", "null", "'x' || 'Y'"],
    NOACCENT: ["'e'", "'É'", "'E'", "'u'", "'ü'", "null"],
    UNION: [f"union_value(num := null)::{UNION}", "null", "1", "'x'", f"union_value(str := null)::{UNION}"],
    UNIONS: [
        "[union_value(a := null)::union(a int, b double), null]",
        "null",
        "[]",
        "[union_value(b := 1.5)::union(a int, b double)]",
    ],
    "uuid[]": ["['6ba7b810-9dad-11d1-80b4-00c04fd430c8', null]", "[]", "null"],
    "struct(h hugeint[], b bit)": ["{'h': [5, null], 'b': '101'}", "{'h': null, 'b': null}", "null"],
    "json[]": ["['[1]', null]", "null", "[]"],
    "double[]": ["[0.0]", "[-0.0::double]", "null", "['nan'::double, 1.5]"],
}
# Values on which no two databases agree: only the log is held against the table.
RANDOM = {"int": "(random() * 7)::int", "varchar": "uuid()::varchar", "double": "random()"}
TEXTS = ("varchar", NOCASE)
# What predicates compare besides numbers.
COMPARED = (NOCASE, NOACCENT, "decimal(10,2)")
PARAMETERS: dict[str, list[object]] = {
    "int": [1, None, "7", Decimal("2.4"), Decimal("1.6"), Decimal("3.0")],
    "varchar": ["p", "$1", None, "it's"],
    "decimal(10,2)": [Decimal("1.244"), Decimal("3.136"), 5, None],
    NOCASE: ["A", "b", None],
    NOACCENT: ["É", "e", None],
}


@dataclass
class Statement:
    """A random statement. `open` says that plain DuckDB promises less: only the count is compared."""

    text: str = ""
    parameters: list[object] = field(default_factory=list)
    open: bool = False


class Generator:
    """Random statements on one kind of table."""

    def __init__(self, rng: random.Random, kind: TableKind) -> None:
        self.r = rng
        self.kind = kind
        self.columns = list(kind.columns)
        self.ints = [c for c in self.columns if kind.columns[c] == "int"]
        self.keys = {c for columns in kind.unique for c in columns}
        self.now = Statement()

    def statement(self) -> Statement:
        """One statement."""
        self.now = Statement()
        makers = self.makers()
        maker = self.r.choices([m for _, m in makers], [w for w, _ in makers])[0]
        self._keep_used_parameters(maker())
        return self.now

    def makers(self) -> list[tuple[int, Callable[[], str]]]:
        """What makes each sort of statement, and how often it is taken."""
        return [
            (10, self.insert),
            (6, self.insert_query),
            (3, self.insert_by_name),
            (1, self.insert_defaults),
            (20, self.update),
            (6, self.update_from),
            (8, self.delete),
            (4, self.delete_using),
            (16, self.upsert),
            (5, self.replace),
            (3, self.ignore),
            (1, self.truncate),
        ]

    def _keep_used_parameters(self, text: str) -> None:
        """Number the parameters anew: some were made for choices that were not taken."""
        used: list[str] = []

        def renumbered(found: re.Match[str]) -> str:
            used.append(found[1])
            return f"${len(used)}"

        self.now.text = re.sub(r"\$(\d+)", renumbered, text)
        self.now.parameters = [self.now.parameters[int(number) - 1] for number in used]

    def pick(self, *choices: str) -> str:
        return self.r.choice(choices)

    def spelled(self, name: str) -> str:
        """A name as it is, or in other letters."""
        return name if name.startswith('"') or self.r.random() < 0.8 else name.upper()

    def number(self, top: int = 12) -> str:
        return str(self.r.randint(0, top))

    def parameter(self, column: str) -> str:
        """A parameter, of a type with some."""
        self.now.parameters.append(self.r.choice(PARAMETERS[self.kind.columns[column]]))
        return f"${len(self.now.parameters)}"

    def value(self, column: str, parameters: bool = True) -> str:
        kind = self.kind.columns[column]
        if parameters and kind in PARAMETERS and self.r.random() < 0.12:
            return self.parameter(column)
        if kind != "int":
            return self.r.choice(VALUES[kind])
        if column in self.keys and self.r.random() < 0.9:
            return self.number()
        return self.pick(self.number(9), f"({self.number(9)} + 1)", "null", "'6'", "2.5")

    def expression(self, column: str, relation: str, bare: bool = True) -> str:
        """A value to assign, often from the row itself; `bare` names of columns are not ambiguous."""
        dot = self.pick("", f"{relation}.") if bare else f"{relation}."
        own, kind = f"{dot}{column}", self.kind.columns[column]
        roll = self.r.random()
        if roll < 0.1:
            # Which row gets which number of a sequence is not promised.
            self.now.open |= self.kind.volatile
            return "default"
        if roll < 0.16:  # volatile, with a value that both databases agree on
            return f"case when random() < 2 then {self.value(column)} end"
        if roll < 0.19 and kind in RANDOM and column not in self.keys:
            self.now.open = True
            return RANDOM[kind]
        if kind == "int" and roll < 0.7:
            return self.pick(
                f"{own} + 1",
                f"{own} - 1",
                f"12 - {own}",
                f"abs({own}) + 1",
                f"case {own} when 1 then 2 when 2 then 1 else {own} end",
                f"(select max(zz.{column}) from {self.kind.name} zz) + 1",
                f"(select count(*) from {self.kind.name} zz where zz.{column} < {relation}.{column})",
            )
        if kind in TEXTS and roll < 0.6:
            other = f"{dot}{self.r.choice(self.columns)}"
            return self.pick(
                f"{own} || '!'",
                f"upper({own})",
                f"coalesce({own}, '') || 'z'",
                f"alias({other})",
                f"alias({other}) || typeof(row({other}))",
                f"struct_keys(struct_pack({other}))[1]",
                f"(select max(columns(['{self.ints[0].strip(chr(34))}'])) from {self.kind.name})::varchar",
                self.place(),
            )
        return self.value(column)

    def place(self) -> str:
        """A column by its place: refused where capture's text has another one there."""
        return f"#{self.r.randint(1, len(self.columns))}"

    def predicate(self, relation: str, bare: bool = True) -> str:
        dot = self.pick("", f"{relation}.") if bare else f"{relation}."
        column = self.r.choice(self.ints)
        own = f"{dot}{column}"
        inner = (
            f"select 1 from {self.kind.name} zz where zz.{column} = {relation}.{column} and zz.{column} < 5"
        )
        others = [c for c, kind in self.kind.columns.items() if kind in COMPARED]
        if others and self.r.random() < 0.4:
            named = self.r.choice(others)
            other = f"{dot}{named}"
            return self.pick(
                f"{other} = {self.value(named)}",
                f"{other} = {self.parameter(named)}",
                f"{other} < {self.value(named)}",
                f"{other} in ({self.value(named)}, {self.value(named)})",
                f"{other} = (select min(zz.{named}) from {self.kind.name} zz)",
            )
        return self.pick(
            f"{own} = {self.value(column)}",
            f"{own} = {self.parameter(column)}",
            f"{own} = {self.number()}",
            f"{own} % 2 = 0",
            f"{own} > {self.number()}",
            f"{own} in ({self.number()}, {self.number()}, {self.number()})",
            f"{own} is distinct from {self.number()}",
            f"{own} = (select max(zz.{column}) from {self.kind.name} zz)",
            f"exists ({inner})",
            f"case when {own} > 3 then true else false end",
            "true",
        )

    def returning(self, relation: str, schema: bool = True) -> str:
        if self.r.random() < 0.5:
            return ""
        first, last = self.columns[0], self.columns[-1]
        choices = [
            "*",
            f"{first}, {last} as x",
            f"{relation}.*",
            f"{relation}.{last}",
            f"{self.ints[0]} + 1 as zz",
            f"* exclude ({last})",
            "columns(*)",
            f"alias({first}), typeof(row({relation}.{last})), #1",
            f"case when {self.ints[0]} is null then 'n' else 'y' end, *",
            *self.kind.generated,
        ]
        if schema and self.kind.schema != "main":
            choices.append(f"{self.kind.name}.{first}")
        return f" returning {self.r.choice(choices)}"

    def some_columns(self) -> list[str]:
        if self.r.random() < 0.5:
            return self.columns
        chosen = [c for c in self.columns if c in self.keys or self.r.random() < 0.6] or list(self.columns)
        self.r.shuffle(chosen)
        return chosen

    def rows(self, columns: list[str]) -> str:
        def row() -> str:
            values = (
                "default" if self.r.random() < (0.01 if c in self.keys else 0.06) else self.value(c)
                for c in columns
            )
            return f"({', '.join(values)})"

        return "values " + ", ".join(row() for _ in range(self.r.choice((1, 1, 2, 3, 6))))

    def query(self, columns: list[str]) -> str:
        def source(column: str) -> str:
            shifted = self.kind.columns[column] == "int" and self.r.random() < 0.4
            return f"{column} + {self.number(20)}" if shifted else column

        where = f" where {self.predicate(self.relation)}" if self.r.random() < 0.5 else ""
        if columns is self.columns and not self.kind.generated and self.r.random() < 0.1:
            return f"select {self.pick('columns(*)', '*')} from {self.kind.name}{where}"
        return f"select {', '.join(map(source, columns))} from {self.kind.name}{where}"

    @property
    def relation(self) -> str:
        return self.kind.table

    def insert(self) -> str:
        columns = self.some_columns()
        whole = columns is self.columns and not self.kind.generated
        listed = "" if whole else f" ({', '.join(map(self.spelled, columns))})"
        return f"insert into {self.kind.name}{listed} {self.rows(columns)}{self.returning(self.relation)}"

    def insert_query(self) -> str:
        columns = self.some_columns()
        query = self.query(columns)
        query = self.pick(query, f"({query})")
        prefix = self.pick("", "", "with q as (select 1) ")
        text = f"insert into {self.kind.name} ({', '.join(columns)}) {query}{self.returning(self.relation)}"
        return prefix + text

    def insert_by_name(self) -> str:
        row = self.named_row(self.some_columns())
        return f"insert into {self.kind.name} by name {row}{self.returning(self.relation)}"

    def named_row(self, columns: list[str]) -> str:
        named = (f"{self.value(c, False)}::{self.kind.columns[c]} as {c}" for c in columns)
        return f"select {', '.join(named)}"

    def insert_defaults(self) -> str:
        return f"insert into {self.kind.name} default values{self.returning(self.relation)}"

    def assignments(self, relation: str, columns: list[str]) -> str:
        if len(columns) == 2 and self.r.random() < 0.3:
            values = ", ".join(self.expression(c, relation) for c in columns)
            return f"({', '.join(columns)}) = {self.pick('', 'row')}({values})"
        return ", ".join(f"{self.spelled(c)} = {self.expression(c, relation)}" for c in columns)

    def aliased(self) -> tuple[str, str]:
        alias = self.r.choice((None, None, "x", '"x y"'))
        return (f"{self.kind.name} as {alias}", alias) if alias else (self.kind.name, self.relation)

    def update(self) -> str:
        target, relation = self.aliased()
        columns = self.r.sample(self.columns, self.r.choice((1, 1, 2)))
        where = f" where {self.predicate(relation)}" if self.r.random() < 0.85 else ""
        prefix = ""
        if where and self.r.random() < 0.1:
            prefix, where = "with w as (select 3 as q) ", where + " and (select q from w) = 3"
        sets = self.assignments(relation, columns)
        schema = relation == self.relation
        return f"{prefix}update {target} set {sets}{where}{self.returning(relation, schema)}"

    def update_from(self) -> str:
        target, relation = self.aliased()
        column, key = self.r.choice(self.columns), self.r.choice(self.ints)
        source = f"(select {key} as kk, min({self.number()}) as vv from {self.kind.name} group by 1) y"
        if self.r.random() < 0.3:
            # Which of two matches is taken is not promised.
            self.now.open = True
            pairs = (f"({self.number()}, {self.number()})" for _ in range(3))
            source = f"(values {', '.join(pairs)}) y(kk, vv)"
        value = "vv" if self.kind.columns[column] == "int" else self.value(column)
        where = f"{relation}.{key} = y.kk"
        schema = relation == self.relation
        text = f"update {target} set {column} = {value} from {source} where {where}"
        return text + self.returning(relation, schema)

    def delete(self) -> str:
        target, relation = self.aliased()
        schema = relation == self.relation
        returning = self.returning(relation, schema)
        if self.r.random() < 0.15:
            returning = f" returning {self.pick('', '*, ', relation + '.*, ')}{relation}.rowid is null as r"
        return f"delete from {target} where {self.predicate(relation)}{returning}"

    def delete_using(self) -> str:
        target, relation = self.aliased()
        source = f"(values ({self.number()}), ({self.number()}), ({self.number()})) y(kk)"
        where = f"{relation}.{self.r.choice(self.ints)} = y.kk"
        schema = relation == self.relation
        return f"delete from {target} using {source} where {where}{self.returning(relation, schema)}"

    def upsert(self) -> str:
        kind = self.kind
        unique = self.r.choice(kind.unique) if kind.unique else (self.columns[0],)
        target = f" ({', '.join(map(self.spelled, unique))})" if self.r.random() < 0.85 else ""
        alias = self.r.choice((None, None, "z"))
        relation = alias or self.relation
        free = [c for c in self.columns if c not in self.keys]
        columns = self.r.sample(free if self.r.random() < 0.85 else self.columns, self.r.choice((1, 1, 2)))
        sets = ", ".join(f"{self.spelled(c)} = {self.proposed(c, relation)}" for c in columns)
        last = self.ints[-1]
        where = self.pick("", "", f" where {relation}.{last} > 3", f" where excluded.{last} > 3")
        given = self.some_columns()
        source = self.pick(self.rows(given), self.rows(given), self.query(given))
        # How many numbers an upsert takes from a sequence is not promised either.
        self.now.open |= kind.null_keys or kind.volatile
        into = f"{kind.name}{f' as {alias}' if alias else ''}"
        text = f"insert into {into} ({', '.join(given)}) {source}"
        if self.r.random() < 0.15:
            text = f"insert into {into} by name {self.named_row(given)}"
        conflict = f" on conflict{target} do update set {sets}{where}"
        return text + conflict + self.returning(relation, schema=False)

    def proposed(self, column: str, relation: str) -> str:
        if self.kind.columns[column] != "int":
            # Plain DuckDB works out a constant here even where no row needs it: no bad ones.
            value = self.value(column).replace("'zz'", "'c'")
            by_names = []
            if self.kind.columns[column] in TEXTS and '"excluded"' not in self.kind.columns:
                other = self.r.choice(self.columns)
                by_names = [
                    f"alias(excluded.{other}) || alias({relation}.{other})",
                    f"typeof(struct_pack(excluded.{other}))",
                    f"struct_keys(struct_pack(EXCLUDED.{other}))[1]",
                    f"to_json(row(excluded.{other}, {relation}.{other}))::varchar",
                    f"typeof(row(excluded.{other})) || alias(row({other}))",
                    self.place(),
                ]
            return self.pick(f"excluded.{column}", value, "default", *by_names)
        return self.pick(
            f"excluded.{column}",
            f"{relation}.{column} + 1",
            f"{column} + EXCLUDED.{column}",
            self.number(),
            f"case when random() < 2 then excluded.{column} end",
            "default",
        )

    def replace(self) -> str:
        columns = self.some_columns()
        self.now.open |= self.kind.null_keys or self.kind.volatile
        text = f"insert or replace into {self.kind.name} ({', '.join(columns)}) {self.rows(columns)}"
        if self.r.random() < 0.2:
            text = f"insert or replace into {self.kind.name} by name {self.named_row(columns)}"
        return text + self.returning(self.relation)

    def ignore(self) -> str:
        columns = self.some_columns()
        self.now.open |= self.kind.null_keys
        choice, end = self.r.choice(((" or ignore", ""), ("", " on conflict do nothing")))
        text = f"insert{choice} into {self.kind.name} ({', '.join(columns)}) {self.rows(columns)}{end}"
        return text + self.returning(self.relation)

    def truncate(self) -> str:
        return f"truncate {self.kind.name}"
