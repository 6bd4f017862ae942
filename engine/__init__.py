"""What a stream is: capture, log, buffers, offsets and groups over one DuckDB file."""
