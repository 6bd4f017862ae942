"""The HTTP API: streams, groups and statements for clients that speak HTTP, on the server's event loop.

`HttpPort` is imported from `http_port.py` by a server with that port only: it needs aiohttp (extra `http`).
"""
