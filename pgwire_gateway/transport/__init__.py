"""Sockets, event loop and worker threads around the conversation."""

from .loops import TimedLoop
from .server import Server, listen, serve_in_thread
from .tls import TlsFiles

__all__ = ["Server", "TimedLoop", "TlsFiles", "listen", "serve_in_thread"]
