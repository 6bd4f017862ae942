"""Names of streams, topics and tables as users write them in options: `orders`, `app.orders`, `app."a.b"`.

A part without quotes is taken as it stands, blanks within it too; a part in double quotes may hold anything,
a quote doubled. What is written out again (`str`) is read as the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import sql

_PLAIN = re.compile(r'[^\s".,\x00](?:[^".,\x00]*[^\s".,\x00])?')
_PART = rf'"(?:[^"\x00]|"")+"|{_PLAIN.pattern}'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_LIST = re.compile(rf"\s*({_PART})\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class Name:
    """A name, perhaps with its schema.

    Args:
        name, schema: without quotes, as they are in the catalog.
    """

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, written: str) -> Name:
        """The name that a user has written.

        Raises:
            ValueError: it is none.
        """
        found = _NAME.fullmatch(written)
        if found is None:
            raise ValueError(
                "it is a name, perhaps with its schema, such as orders or app.orders; a name with a dot, a "
                'comma or a quote stands in double quotes: app."a.b"'
            )
        schema, name = found.groups()
        return cls(_bare(name), None if schema is None else _bare(schema))

    @property
    def identifier(self) -> sql.Identifier:
        """As SQL."""
        return sql.Identifier(*self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Schema, if any, and name."""
        return (self.name,) if self.schema is None else (self.schema, self.name)

    def __str__(self) -> str:
        return ".".join(map(written, self.parts))


def parse_list(text: str) -> list[str]:
    """Names of columns with commas between, as users write them.

    Raises:
        ValueError: that is not what it is.
    """
    found, at = [], 0
    while at < len(text) or text.rstrip().endswith(","):
        one = _LIST.match(text, at)
        if one is None:
            raise ValueError("it is names with commas between, such as version or day, version")
        found.append(_bare(one[1]))
        at = one.end()
    if not found:
        raise ValueError("it is empty")
    return found


def written(part: str) -> str:
    """A part of a name as a user writes it: in quotes where it wants them."""
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'


def _bare(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
