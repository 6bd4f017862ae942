"""The Postgres wire: codec, conversation, catalog for clients and server."""

from .transport import Server, listen, serve_in_thread

__all__ = ["Server", "listen", "serve_in_thread"]
