"""CREATE, ALTER, DROP and COMMENT of DuckDB's own objects, with checks where a stream depends on them."""
