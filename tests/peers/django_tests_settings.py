"""Settings for Django's own tests, and a runner that writes an outcome for each."""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test.runner import DiscoverRunner

DUCKTAIL = os.environ["PEERS_SERVER"] == "ducktail"
OPTIONS = ["-c statement_timeout=60s", "-c lock_timeout=20s"]
if DUCKTAIL:
    # As in docs/clients.md: Django adds each foreign key by ALTER TABLE, which is refused otherwise, and its
    # tests expect PostgreSQL's order of NULLs and its division of integers.
    OPTIONS += ["-c unenforced_foreign_keys=on", "-c default_null_order=postgres", "-c integer_division=on"]

DATABASES = {
    "default": {
        "ENGINE": "django_backend",
        "NAME": os.environ["PGDATABASE"],
        "USER": os.environ["PGUSER"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "OPTIONS": {"options": " ".join(OPTIONS)},
        # The tests use the database that is served: CREATE DATABASE does not exist (--keepdb).
        "TEST": {"NAME": os.environ["PGDATABASE"]},
    },
    # The tests' second database, which is not tested.
    "other": {"ENGINE": "django.db.backends.sqlite3"},
}
SECRET_KEY = "peers"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "django_tests_settings.Runner"


class Result(unittest.TextTestResult):
    """Writes an outcome as soon as it is known, to the file in $PEERS_RESULTS."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        """A test that passed; one that was expected to fail is no such test."""
        super().addSuccess(test)
        _write(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """A skipped test: features that the backend says it has not."""
        super().addSkip(test, reason)
        _write(test, "skipped")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """A test that failed with an error."""
        super().addError(test, err)
        _write(test, _told(err))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """A test that found something else than it expected."""
        super().addFailure(test, err)
        _write(test, _told(err))

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        """A part of a test: the first that fails is the test's outcome."""
        super().addSubTest(test, subtest, err)
        if err:
            _write(test, _told(err))


class Runner(DiscoverRunner):
    """Django's runner with these outcomes."""

    def setup_databases(self, **words: Any) -> Any:
        """Make the tables; the migrations of db_functions want an extension of PostgreSQL's."""
        settings.MIGRATION_MODULES["db_functions"] = None
        return super().setup_databases(**words)

    def get_resultclass(self) -> type[unittest.TextTestResult]:
        """The class of results."""
        return Result


def _write(test: unittest.TestCase, outcome: str) -> None:
    with Path(os.environ["PEERS_RESULTS"]).open("a") as out:
        out.write(f"{test.id()}\t{' '.join(outcome.split())}\n")


def _told(err: Any) -> str:
    kind, error, _ = err
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return f"{kind.__name__} {state}: {error}"
