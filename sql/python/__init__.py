"""Python's DB-API (PEP 249) over a session without the wire, and programs that follow a stream."""
