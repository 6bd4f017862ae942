"""The words that DuckDB 2.0 keeps for itself: they cannot name a table, a column or an alias.

Taken from `duckdb_keywords()`: the reserved ones, and those that may only name types or functions.
A test compares the lists with the installed DuckDB.
"""

from __future__ import annotations

RESERVED = frozenset(
    ["ALL", "ANALYSE", "ANALYZE", "AND", "ANY", "ARRAY", "AS", "ASC", "ASYMMETRIC", "BOTH", "CASE", "CAST", "CHECK", "COLLATE", "COLUMN", "CONSTRAINT", "CREATE", "DEFAULT", "DEFERRABLE", "DESC", "DESCRIBE", "DISTINCT", "DO", "ELSE", "END", "EXCEPT", "FALSE", "FETCH", "FOR", "FOREIGN", "FROM", "GROUP", "HAVING", "IN", "INITIALLY", "INTERSECT", "INTO", "LAMBDA", "LATERAL", "LEADING", "LIMIT", "NOT", "NULL", "OFFSET", "ON", "ONLY", "OR", "ORDER", "PIVOT", "PIVOT_LONGER", "PIVOT_WIDER", "PLACING", "PRIMARY", "QUALIFY", "REFERENCES", "RETURNING", "SELECT", "SHOW", "SOME", "SUMMARIZE", "SYMMETRIC", "TABLE", "THEN", "TO", "TRAILING", "TRUE", "UNION", "UNIQUE", "UNPIVOT", "USING", "VARIADIC", "WHEN", "WHERE", "WINDOW", "WITH"]
)

TYPE_OR_FUNCTION = frozenset(
    ["ANTI", "ASOF", "AT", "AUTHORIZATION", "BINARY", "BY", "COLLATION", "CONCURRENTLY", "CROSS", "FREEZE", "FULL", "GLOB", "ILIKE", "INNER", "IS", "ISNULL", "JOIN", "LEFT", "LIKE", "NATURAL", "NOTNULL", "OUTER", "OVERLAPS", "POSITIONAL", "RIGHT", "SEMI", "SIMILAR", "TABLESAMPLE", "UNPACK", "VERBOSE"]
)

NOT_NAMES = RESERVED | TYPE_OR_FUNCTION
