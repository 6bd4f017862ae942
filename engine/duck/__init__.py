"""DuckDB as the engine uses it: queries, bound texts, catalog objects, table shapes, errors."""
