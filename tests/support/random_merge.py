"""Random MERGE beside the other DML, for tests/property/test_shapes.py and test_streamed_tables.py."""

from __future__ import annotations

from collections.abc import Callable

import random_dml


class Generator(random_dml.Generator):
    """Random statements on one kind of table, MERGE with all its branches among them."""

    def makers(self) -> list[tuple[int, Callable[[], str]]]:
        """As `random_dml` has it, and MERGE."""
        return [*super().makers(), (30, self.merge)]

    def merge(self) -> str:
        target, relation = self.aliased()
        name = self.pick("s", "s", '"s x"')
        columns, source, prefix = self.merge_source(name)
        key = self.r.choice([c for c in columns if c in self.ints] or [columns[0]])
        join = self.pick(
            *(f"on {relation}.{key} = {name}.{key}",) * 5,
            f"using ({key})",
            f"on {name}.{key} + 1 = {relation}.{key} and {relation}.{self.ints[-1]} is not null",
            f"on {name}.{key} < 3 and {relation}.{key} = 2",
            f"on ({relation}.{key} = {name}.{key} or false)",
        )
        clauses = self.merge_clauses(relation, name, columns)
        self.now.open |= self.kind.volatile
        text = f"{prefix}merge into {target} using {source} {join} {' '.join(clauses)}"
        return text + self.merge_returning(relation)

    def merge_source(self, name: str) -> tuple[list[str], str, str]:
        """A source's columns, its text behind USING, and what stands before the statement."""
        kind = self.kind
        columns = self.some_columns()
        listed = ", ".join(columns)
        roll = self.r.random()
        if roll < 0.4:
            rows = []
            for _ in range(self.r.choice((1, 1, 2, 4))):
                values = (f"{self.value(c)}::{kind.columns[c]}" for c in columns)
                rows.append(f"({', '.join(values)})")
            return columns, f"(values {', '.join(rows)}) as {name}({listed})", ""
        if roll < 0.5:
            row = ", ".join(f"{self.value(c)}::{kind.columns[c]} as {c}" for c in columns)
            return columns, f"(select {row}) {name}", ""
        if roll < 0.6 and not kind.generated:
            return self.columns, f"{kind.name} as {name}", ""
        query = self.query(columns)
        named = f"({query}) {name}({listed})"
        if roll < 0.7:
            return columns, name, f"with {name}({listed}) as ({query}) "
        if roll < 0.8:
            return columns, f"(select distinct * from {named}) {name}", ""
        if roll < 0.85:
            other = f"(values (1), (2)) as zz(k) on zz.k > {self.number(2)}"
            return columns, f"{named} join {other}", ""
        return columns, named, ""

    def merge_clauses(self, relation: str, name: str, columns: list[str]) -> list[str]:
        clauses = []
        kinds = ("matched", self.pick("not matched", "not matched by target"), "not matched by source")
        for kind in self.r.sample(kinds, self.r.choice((1, 2, 2, 3))):
            number = self.r.choice((1, 1, 1, 2, 3))
            for place in range(number):
                last = place == number - 1
                condition = ""
                if not last or self.r.random() < 0.4:
                    condition = f" and {self.merge_condition(kind, relation, name, columns)}"
                action = self.merge_action(kind, relation, name, columns)
                clauses.append(f"when {kind}{condition} then {action}")
        return clauses

    def merge_condition(self, kind: str, relation: str, name: str, columns: list[str]) -> str:
        if self.r.random() < 0.1:
            return self.pick("random() < 2", "random() > 2")
        if kind == "not matched by source":
            return self.predicate(relation)
        ints = [c for c in columns if c in self.ints]
        if kind == "matched" and (self.r.random() < 0.5 or not ints):
            return self.predicate(relation, bare=False)
        if not ints:
            return "true"
        column = self.r.choice(ints)
        own = f"{name}.{column}" if kind == "matched" else self.pick(column, f"{name}.{column}")
        return self.pick(f"{own} > {self.number()}", f"{own} % 2 = 0", f"{own} is not null")

    def merge_action(self, kind: str, relation: str, name: str, columns: list[str]) -> str:
        roll = self.r.random()
        has_target = kind in ("matched", "not matched by source")
        if roll < 0.06:
            return "do nothing"
        if roll < 0.09:
            told = f"{relation}.{self.ints[0]}" if has_target else f"{name}.{columns[0]}"
            return self.pick("error", f"error concat('e', {told})")
        if has_target:
            if roll < 0.3:
                return "delete"
            if roll < 0.85:
                return self.merge_update(kind, relation, name, columns)
        return self.merge_insert(kind, relation, name, columns)

    def merge_update(self, kind: str, relation: str, name: str, columns: list[str]) -> str:
        if kind == "matched" and self.r.random() < 0.25:
            if columns is self.columns:
                return self.pick("update", "update set *", "update by name", "update by position")
            return "update by name"
        free = [c for c in self.columns if c not in self.keys] or self.columns
        chosen = self.r.sample(free if self.r.random() < 0.7 else self.columns, self.r.choice((1, 1, 2)))
        bare = kind != "matched"

        def given(column: str) -> str:
            if kind == "matched" and column in columns and self.r.random() < 0.6:
                both = f"{name}.{column} + {relation}.{column}" if column in self.ints else f"{name}.{column}"
                return self.pick(f"{name}.{column}", both)
            return self.expression(column, relation, bare)

        if len(chosen) == 2 and self.r.random() < 0.3:
            return f"update set ({', '.join(chosen)}) = ({', '.join(map(given, chosen))})"
        return f"update set {', '.join(f'{c} = {given(c)}' for c in chosen)}"

    def merge_insert(self, kind: str, relation: str, name: str, columns: list[str]) -> str:
        has_source = kind != "not matched by source"
        if has_source and self.r.random() < 0.3:
            if columns is self.columns:
                return self.pick("insert", "insert *", "insert by name", "insert by position *")
            return "insert by name"
        if self.r.random() < 0.04:
            return "insert default values"
        chosen = self.some_columns()

        def given(column: str) -> str:
            roll = self.r.random()
            if roll < 0.06 and column not in self.keys:
                return "default"
            if roll < 0.1:
                return f"case when random() < 2 then {self.value(column)} end"
            if not has_source:
                if column in self.keys and column in self.ints:
                    return f"{relation}.{column} + {self.number(30)}"
                return self.pick(f"{relation}.{column}", self.value(column))
            if column in columns and roll < 0.8:
                shift = f" + {self.number(20)}" if column in self.ints and self.r.random() < 0.4 else ""
                bare = "" if kind != "matched" else f"{name}."
                return self.pick(f"{bare}{column}{shift}", f"{name}.{column}{shift}")
            return self.value(column)

        listed = f" ({', '.join(chosen)})" if chosen is not self.columns or self.r.random() < 0.5 else ""
        listed = listed or (f" ({', '.join(chosen)})" if self.kind.generated else "")
        return f"insert{listed} values ({', '.join(map(given, chosen))})"

    def merge_returning(self, relation: str) -> str:
        if self.r.random() < 0.4:
            return ""
        first, last = self.columns[0], self.columns[-1]
        return " returning " + self.pick(
            "*",
            "merge_action, *",
            f"merge_action, {relation}.*",
            f"{relation}.merge_action as a, {relation}.{last}",
            f"* exclude ({last}), merge_action",
            f"* exclude {first}, lower(merge_action)",
            "merge_action, columns(*)",
            f"case merge_action when 'DELETE' then null else {self.ints[0]} * 2 end as z, *",
            *(f"merge_action, {g}" for g in self.kind.generated),
        )
