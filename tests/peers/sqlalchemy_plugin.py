"""A pytest plugin: SQLAlchemy's suite begins on a server that has no extensions.

The suite creates the extensions citext and hstore before its first test, and ends where that fails. Here the
failure is printed; tests that want an extension fail by themselves.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the preparation of the database fail without ending the run."""
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
