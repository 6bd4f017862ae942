"""Sockets, event loop and worker threads around the conversation."""

from .server import Server, listen, serve_in_thread

__all__ = ["Server", "listen", "serve_in_thread"]
