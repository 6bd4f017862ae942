"""The Postgres wire: codec, conversation, server, catalog for clients, peers, and the command line."""

from .server import Server, TimedLoop, TlsFiles, listen, serve_in_thread

__all__ = ["Server", "TimedLoop", "TlsFiles", "listen", "serve_in_thread"]
