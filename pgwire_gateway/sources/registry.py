"""The connectors by kind of source."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from ...engine.catalog.feeds import POSTGRES, Feed, Selection
from ...engine.errors import InvalidParameterValue, NotSupported
from .connector import Connector

# A slot that is only described has no name yet.
_NONE = "ducktail"
# The libraries of sources that are not requirements of ducktail.
_EXTRA_LIBRARIES = ("pymysqlreplication", "pymysql")

Options = Mapping[str, str | int | None]


def connector_of(feed: Feed, spill: Path | None) -> Connector:
    """The connector of a feed.

    Args:
        spill: a directory for temporary files; None for the system's.
    """
    return _connector(feed.kind, feed.address, feed.selection, feed.options, feed.slot, feed.identity, spill)


def described_by(kind: str, address: str, selection: Selection, options: Options) -> Connector:
    """A connector that only looks at a source.

    Raises:
        NotSupported: the libraries of the kind are not installed.
        InvalidParameterValue: the address is invalid.
    """
    slot = str(options.get("slot") or _NONE)
    return _connector(kind, address, selection, options, slot, None, None)


def _connector(
    kind: str,
    address: str,
    selection: Selection,
    options: Options,
    slot: str,
    identity: str | None,
    spill: Path | None,
) -> Connector:
    if kind == POSTGRES:
        from .postgres import PostgresConnector, PostgresSelection

        chosen = PostgresSelection(
            tables=selection.names if selection.kind == "tables" else (),
            schema=selection.names[0][1] if selection.kind == "schema" else None,
            publication=selection.names[0][1] if selection.kind == "publication" else None,
        )
        return PostgresConnector(address, chosen, slot, identity=identity, directory=spill)
    for library in _EXTRA_LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise NotSupported(
                "a source of MySQL or MariaDB needs further packages",
                detail=f"There is no {library}.",
                hint="pip install 'ducktail[sources]'",
            )
    raise NotSupported("a source of MySQL or MariaDB is not supported yet")


def shown_address(kind: str, address: str) -> str:
    """An address without secrets: user, host, port and database.

    Raises:
        InvalidParameterValue: the address is invalid.
    """
    if kind != POSTGRES:
        raise NotSupported("a source of MySQL or MariaDB is not supported yet")
    try:
        found = conninfo_to_dict(address)
    except Exception as error:
        # The message of libpq may contain parts of the text.
        raise InvalidParameterValue(
            "the conninfo is not valid", hint="Write host=... dbname=... or postgresql://host/dbname."
        ) from error
    names = ("service", "user", "host", "hostaddr", "port", "dbname")
    return " ".join(f"{name}={found[name]}" for name in names if found.get(name) is not None)
