"""CREATE, ALTER, DROP and COMMENT of DuckDB's own objects, guarded where a stream depends on them."""
