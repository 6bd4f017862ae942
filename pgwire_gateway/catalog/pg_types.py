"""The types of pg_type: PostgreSQL 15's own, with their oids and functions.

data/pg_type.tsv lists them, a type a line. Its last column has the type's functions with their oids: input,
output, receive, send, and those of its modifier. Types that DuckDB has no values of are left out, except
those that the catalog itself is made of. Source: PostgreSQL's pg_type.dat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .data import read_rows

# The functions of all array types, by role, with their oids.
ARRAY_FUNCTIONS = {"in": 750, "out": 751, "recv": 2400, "send": 2401}
ARRAY_SUBSCRIPT_HANDLER = 6179
ROLES_OF_FUNCTIONS = ("in", "out", "recv", "send", "modin", "modout")
# The columns of pg_type that hold them.
FUNCTION_COLUMNS = ("typinput", "typoutput", "typreceive", "typsend", "typmodin", "typmodout")


@dataclass(frozen=True, slots=True)
class SystemType:
    """One row of pg_type.

    Args:
        oid, name, length, by_value, kind, category, preferred, align, storage, collation, element,
            array: the columns oid, typname, typlen, typbyval, typtype, typcategory, typispreferred,
            typalign, typstorage, typcollation, typelem, typarray.
        shown: what format_type says without a modifier.
        functions: oid by role (ROLES_OF_FUNCTIONS), where there is one.
    """

    oid: int
    name: str
    length: int
    by_value: bool
    kind: str
    category: str
    preferred: bool
    align: str
    storage: str
    collation: int
    element: int
    array: int
    shown: str
    functions: dict[str, int]


def _read() -> Iterator[tuple[SystemType, dict[str, int]]]:
    """The types of the file, each with its functions by name."""
    for row in read_rows("pg_type.tsv"):
        name, oid, length, by_value, kind, category, preferred, align, storage = row[:9]
        collation, element, array, shown, functions = row[9:]
        pairs = [pair.rsplit(":", 1) for pair in functions.split(" ")]
        oids = [int(number) for _, number in pairs]
        # Types without receive and send have only the first two; those with a modifier have all six.
        yield (
            SystemType(
                int(oid), name, int(length), by_value == "t", kind, category, preferred == "t", align,
                storage, int(collation), int(element), int(array), shown,
                dict(zip(ROLES_OF_FUNCTIONS, oids, strict=False)),
            ),
            {function: int(number) for function, number in pairs},
        )  # fmt: skip


def _array_of(element: SystemType) -> SystemType:
    modifiers = {role: oid for role, oid in element.functions.items() if role.startswith("mod")}
    kind, category = ("p", "P") if element.name == "record" else ("b", "A")
    return SystemType(
        element.array, f"_{element.name}", -1, False, kind, category, False,
        "d" if element.align == "d" else "i", "x", element.collation, element.oid, 0,
        f"{element.shown}[]", ARRAY_FUNCTIONS | modifiers,
    )  # fmt: skip


SCALARS: tuple[SystemType, ...] = tuple(found for found, _ in _read())
ARRAYS: tuple[SystemType, ...] = tuple(_array_of(found) for found in SCALARS if found.array)
TYPES: tuple[SystemType, ...] = SCALARS + ARRAYS
BY_NAME: dict[str, SystemType] = {found.name: found for found in TYPES}
# Other names that SQL has for types.
ALIASES: dict[str, int] = {
    "int": 23, "decimal": 1700, "dec": 1700, "float": 701, "char": 1042, "timestamp": 1114, "time": 1083,
    "string": 25,
}  # fmt: skip
# Names by which SQL calls a type: typname, the name that format_type shows, and the others.
OID_OF_NAME: dict[str, int] = {
    name: found.oid for found in TYPES for name in (found.name, found.shown, found.shown.strip('"'))
} | ALIASES

# Input and output functions by name: what `'array_in'::regproc` is.
FUNCTION_OIDS: dict[str, int] = {f"array_{role}": oid for role, oid in ARRAY_FUNCTIONS.items()} | {
    name: oid for _, functions in _read() for name, oid in functions.items()
}
