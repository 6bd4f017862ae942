"""The client of PostgreSQL as a source: logical replication with pgoutput, and copies as of its positions."""

from .postgres_connector import PostgresConnector, PostgresSelection

__all__ = ["PostgresConnector", "PostgresSelection"]
