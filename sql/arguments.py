"""The arguments of our statements: literals, or the values of parameters in their place."""

from __future__ import annotations

from ..engine.errors import InvalidParameterValue, InvalidTextRepresentation, UndefinedParameter
from .language import statements as st

Values = tuple[object, ...]


def check_given(index: int, parameters: Values) -> None:
    """There is a value for each parameter up to this one.

    Raises:
        UndefinedParameter: 42P02.
    """
    if index > len(parameters):
        raise UndefinedParameter(f"there is no parameter ${index}")


def value_of(scalar: st.Scalar, parameters: Values) -> object:
    """A scalar of a statement, a parameter replaced by its value.

    Raises:
        InvalidParameterValue: 22023, the parameter's value is NULL. UndefinedParameter: 42P02, it has none.
    """
    if not isinstance(scalar, st.Parameter):
        return scalar
    check_given(scalar.index, parameters)
    value = parameters[scalar.index - 1]
    if value is None:
        raise InvalidParameterValue(f"parameter ${scalar.index} must not be NULL")
    return value


def number(scalar: st.Scalar, parameters: Values, what: str) -> int:
    """A scalar that is a whole number, at least 0.

    Raises:
        InvalidTextRepresentation: 22P02, it is none. InvalidParameterValue: 22023, it is negative.
    """
    value = value_of(scalar, parameters)
    if isinstance(value, bool) or not isinstance(value, int):
        try:
            value = int(str(value))
        except ValueError as error:
            raise InvalidTextRepresentation(f'{what} wants a whole number, not "{value}"') from error
    if value < 0:
        raise InvalidParameterValue(f"{what} must not be negative: {value}")
    return value


def text(scalar: st.Scalar, parameters: Values) -> str:
    """A scalar that is a name or another text."""
    return str(value_of(scalar, parameters))
