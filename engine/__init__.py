"""The engine: capture, log, buffers, offsets and groups of streams over one DuckDB file."""
