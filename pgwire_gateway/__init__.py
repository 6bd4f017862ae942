"""The Postgres wire: codec, conversation, catalog for clients and server."""

from .server import Server, TimedLoop, TlsFiles, listen, serve_in_thread

__all__ = ["Server", "TimedLoop", "TlsFiles", "listen", "serve_in_thread"]
