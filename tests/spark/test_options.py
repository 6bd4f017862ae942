"""The options' table: what is taken, what is refused and by which words."""

from __future__ import annotations

import pickle

import pytest

from ducktail.spark_connector.errors import OptionError
from ducktail.spark_connector.options import OPTIONS, Use, parse


def test_defaults_and_case() -> None:
    options = parse({"HOST": "db", "Port": "5481", "connecttimeout": "500 ms"}, Use.READ)
    assert (options["host"], options["port"], options["connectTimeout"]) == ("db", 5481, 0.5)
    assert (options["user"], options["password"], options["database"]) == ("ducktail", None, "ducktail")
    assert options.is_given("port") and not options.is_given("user")


def test_an_options_value_survives_a_pickle() -> None:
    options = parse({"password": "hidden"}, Use.READ)
    assert pickle.loads(pickle.dumps(options))["password"] == "hidden"


def test_names_are_unique_whatever_their_case() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


def test_what_spark_adds_is_no_error() -> None:
    parse({"checkpointLocation": "/tmp/x", "queryName": "q"}, Use.WRITE_STREAM)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("hots", "db", "unknown option hots, did you mean host?"),
        ("path", "x", "ducktail has no path"),
        ("host", "", "option host cannot be"),
        ("port", "0", 'option port cannot be "0": it is a whole number from 1 to 65535'),
        ("port", "0x10", "whole number"),
        ("port", "१२", "whole number"),
        ("sslmode", "maybe", "it is one of disable, allow, prefer, require, verify-ca, verify-full"),
        ("connectTimeout", "10", "a time with a unit"),
        ("connectTimeout", "1000 h", "at most 600 s"),
    ],
)
def test_what_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse({name: value}, Use.READ, Use.READ_STREAM)
    assert said in str(caught.value)


def test_a_secret_is_never_shown() -> None:
    assert "hidden" not in repr(parse({"password": "hidden"}, Use.READ))
    with pytest.raises(OptionError) as caught:
        parse({"passwort": "hidden"}, Use.READ)
    assert "hidden" not in str(caught.value)
