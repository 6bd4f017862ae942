"""Values that statements and stream scans are made of: parameters, names, pieces of the user's text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Parameter:
    """The statement's parameter `$index`, from 1."""

    index: int

    def __post_init__(self) -> None:
        assert self.index >= 1


Number = int | Parameter
Text = str | Parameter
Scalar = int | str | Parameter


@dataclass(frozen=True, slots=True)
class Name:
    """A name with its qualifiers, outermost first: ("main", "orders")."""

    parts: tuple[str, ...]
    position: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        assert self.parts and all(self.parts)

    @property
    def last(self) -> str:
        """The name without its qualifiers."""
        return self.parts[-1]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of the user's own text, such as a predicate, and where it begins."""

    text: str
    position: int = field(default=0, compare=False)
