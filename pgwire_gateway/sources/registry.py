"""The connectors by kind of source."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from psycopg.conninfo import conninfo_to_dict

from ...engine.catalog.feeds import POSTGRES, Feed, Selection
from ...engine.errors import InvalidParameterValue
from .connector import Connector
from .mysql import SERVER_ID_MAX, MysqlConnector, parsed
from .postgres import PostgresConnector, PostgresSelection

# A slot that is only described has no name yet.
_NONE = "ducktail"
Options = Mapping[str, str | int | None]


def connector_of(feed: Feed) -> Connector:
    """The connector of a feed."""
    return _connector(feed.kind, feed.address, feed.selection, feed.options, feed.slot, feed.identity)


def described_by(kind: str, address: str, selection: Selection, options: Options) -> Connector:
    """A connector that only looks at a source.

    Raises:
        NotSupported: the libraries of the kind are not installed.
        InvalidParameterValue: the address is invalid.
    """
    slot = str(options.get("slot") or _NONE)
    return _connector(kind, address, selection, options, slot, None)


def _connector(
    kind: str,
    address: str,
    selection: Selection,
    options: Options,
    slot: str,
    identity: str | None,
) -> Connector:
    if kind == POSTGRES:
        chosen = PostgresSelection(
            tables=selection.names if selection.kind == "tables" else (),
            schema=selection.names[0][1] if selection.kind == "schema" else None,
            publication=selection.names[0][1] if selection.kind == "publication" else None,
        )
        return PostgresConnector(address, chosen, slot, identity=identity)
    server_id = options.get("server_id")
    if not isinstance(server_id, int):
        server_id = 1 + zlib.crc32(slot.encode()) % (SERVER_ID_MAX - 1)
    names = selection.names if selection.kind == "tables" else selection.names[0][1]
    return MysqlConnector(address, names, server_id, identity)


def shown_address(kind: str, address: str) -> str:
    """An address without secrets: user, host, port and database.

    Raises:
        InvalidParameterValue: the address is invalid.
    """
    if kind != POSTGRES:
        return parsed(address).shown
    try:
        found = conninfo_to_dict(address)
    except Exception as error:
        # The message of libpq may contain parts of the text.
        raise InvalidParameterValue(
            "the conninfo is not valid", hint="Write host=... dbname=... or postgresql://host/dbname."
        ) from error
    names = ("service", "user", "host", "hostaddr", "port", "dbname")
    return " ".join(f"{name}={found[name]}" for name in names if found.get(name) is not None)
