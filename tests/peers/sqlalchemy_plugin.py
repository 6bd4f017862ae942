"""A pytest plugin: SQLAlchemy's suite begins on a server that lacks some features of PostgreSQL.

The suite creates the extensions citext and hstore before its first test, and ends where that fails. Here the
failure is printed; tests that want an extension fail by themselves.

The suite asks its `requirements` for what a database can. Those of PostgreSQL hold for ducktail, without
the features in CLOSED: the fixture of 750 reflection tests would fail with them. Tests of a closed feature
are skipped, which counts as a failure where PostgreSQL passes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

CLOSED = ("cross_schema_fk_reflection", "materialized_views", "reflect_indexes_with_ascdesc")


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Let the preparation of the database fail without ending the run, and close the features."""
    _attempt_preparation()
    yield
    if os.environ.get("PEERS_SERVER") == "ducktail":
        from sqlalchemy.testing import config, exclusions

        for name in CLOSED:
            setattr(type(config.requirements), name, property(lambda requirements: exclusions.closed()))


def _attempt_preparation() -> None:
    from sqlalchemy import exc
    from sqlalchemy.dialects.postgresql import provision as postgresql  # noqa: F401
    from sqlalchemy.testing import provision

    prepare = provision.post_configure_engine.fns["postgresql"]

    def attempt(*words: Any, **named: Any) -> None:
        try:
            prepare(*words, **named)
        except exc.DBAPIError as error:
            print("preparation:", error)

    provision.post_configure_engine.fns["postgresql"] = attempt
