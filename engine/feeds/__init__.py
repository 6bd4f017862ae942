"""Streams that are fed by a database outside: its changes, and how they become events."""
