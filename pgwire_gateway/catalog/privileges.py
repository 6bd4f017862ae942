"""has_table_privilege and its like: what they ask about is looked up, and the session's rights answer.

Each has a form by name and one by oid, each with and without a user before it: as in PostgreSQL a name
that is not there is an error and an oid that is not there NULL. What the session is not told of is not there.
Source: PostgreSQL documentation, "Access Privilege Inquiry Functions".
"""

from __future__ import annotations

from ...engine.quoting import literal
from .places import DATABASE_OID, HOME, MARK, SEPARATOR

# Function -> how many arguments it has from the thing on: a user may stand before.
FUNCTIONS = {
    **{f"has_{kind}_privilege": 2 for kind in ("table", "any_column", "sequence", "schema", "function")},
    "has_database_privilege": 2,
    "has_column_privilege": 3,
    "pg_has_role": 2,
}
_OF_OID = "_of_oid"
# Function -> what is asked about, as sql/rights/answers.py calls it; the lookup of a place by an oid, and
# that of an oid by a name.
_LOOKUPS = {
    "has_table_privilege": ("table", "relation_place", "regclass_in"),
    "has_any_column_privilege": ("column", "relation_place", "regclass_in"),
    "has_column_privilege": ("column", "relation_place", "regclass_in"),
    "has_sequence_privilege": ("sequence", "relation_place", "regclass_in"),
    "has_schema_privilege": ("schema", "schema_place", "regnamespace_in"),
    "has_function_privilege": ("function", "function_place", "function_in"),
    "pg_has_role": ("role", "role_place", "regrole_in"),
    "has_database_privilege": ("database", "database_place", ""),
}
# What is called by these bodies alone.
INNER = frozenset({"relation_place", "schema_place", "function_place", "role_place", "database_place",
                   "relation_column", "function_in", "role_name"}) | {
    name + _OF_OID for name in FUNCTIONS
}  # fmt: skip


def by_oid(name: str) -> str:
    """The form of a function that is given an oid."""
    return name + _OF_OID


def lookups() -> dict[str, str]:
    """The functions: head -> body, with its tables as the catalog's own names."""
    found = _places()
    for name, (kind, place, reader) in _LOOKUPS.items():
        for form in (name, by_oid(name)):
            oid = f"{MARK}{reader}(z_w::VARCHAR)" if reader and form == name else "z_w"
            column = "z_c, " if name == "has_column_privilege" else ""
            for user, who in (("", "NULL"), ("z_u, ", f"{MARK}role_name(z_u)")):
                body = f"{HOME}.may({who}, {literal(kind)}, {MARK}{place}({oid}), z_p)"
                if column:
                    body = f"if({MARK}relation_column({oid}, z_c) IS NULL, NULL, {body})"
                found[f"{form}({user}z_w, {column}z_p)"] = body
    return found


def _places() -> dict[str, str]:
    """What a thing is called, by its oid."""
    relation = (
        "SELECT z_n.oid AS z_key, "
        f"{HOME}.folded(z_s.nspname) || {SEPARATOR} || {HOME}.folded(z_n.relname) AS z_answer "
        "FROM pg_class AS z_n JOIN pg_namespace AS z_s ON z_s.oid = z_n.relnamespace"
    )
    column = (
        "SELECT z_a.attrelid AS z_key, z_a.attname AS z_answer, z_a.attnum::VARCHAR AS z_number "
        "FROM pg_attribute AS z_a"
    )
    return {
        "relation_place(z_o)": _answer(relation, "z_o"),
        "schema_place(z_o)": _answer(_plain("pg_namespace", "oid", f"{HOME}.folded(z_i.nspname)"), "z_o"),
        "function_place(z_o)": _answer(_plain("pg_proc", "oid", f"{HOME}.folded(z_i.proname)"), "z_o"),
        "role_place(z_o)": _answer(_plain("pg_roles", "oid", "lower(z_i.rolname)"), "z_o"),
        "database_place(z_w)": f"CASE WHEN z_w::VARCHAR IN ({HOME}.current_database(), '{DATABASE_OID}') "
        "THEN 'database' WHEN TRY_CAST(z_w::VARCHAR AS BIGINT) IS NULL "
        "THEN error('database \"' || z_w::VARCHAR || '\" does not exist')::VARCHAR END",
        "role_name(z_u)": "coalesce("
        f"{_answer(_plain('pg_roles', 'oid::VARCHAR', 'z_i.rolname'), 'z_u::VARCHAR')}, z_u::VARCHAR)",
        "function_in(z_w)": f"{MARK}regproc_in(regexp_replace(z_w, '\\(.*', ''))",
        "relation_column(z_o, z_c)": "coalesce((SELECT any_value(z_t.z_answer) "
        f"FROM ({column}) AS z_t WHERE z_t.z_key = z_o "
        "AND (z_t.z_answer = z_c::VARCHAR OR z_t.z_number = z_c::VARCHAR)), "
        "if(TRY_CAST(z_c::VARCHAR AS BIGINT) IS NULL, "
        "error('column \"' || z_c::VARCHAR || '\" does not exist')::VARCHAR, NULL))",
    }


def _plain(relation: str, key: str, answer: str) -> str:
    return f"SELECT z_i.{key} AS z_key, {answer} AS z_answer FROM {relation} AS z_i"


def _answer(query: str, argument: str) -> str:
    return f"(SELECT any_value(z_t.z_answer) FROM ({query}) AS z_t WHERE z_t.z_key = {argument})"
