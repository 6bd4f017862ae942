"""Sockets, event loop and worker threads around the conversation."""

from .server import Server, listen, serve_in_thread
from .tls import TlsFiles

__all__ = ["Server", "TlsFiles", "listen", "serve_in_thread"]
