"""The backend of Django that docs/clients.md shows."""
