"""What is written to: a table or a topic, and the columns on their way there."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from .. import sink_columns
from ..errors import OptionError
from ..names import Name
from ..options import Options

# Within a topic's rows.
PAYLOADS = ("value", "payload")
TOPIC_COLUMNS = ("key", *PAYLOADS, "headers")


@dataclass(frozen=True, slots=True)
class Column:
    """One column on its way.

    Args:
        name: the data frame's.
        target: the table's, or the topic's.
        nested: it travels as JSON.
        type: DuckDB's, of a topic's; of a table's the table says.
    """

    name: str
    target: str
    nested: bool = False
    type: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What is written to.

    Args:
        kind: table or topic: the option that names it.
        mode: append, upsert or overwrite.
        order: the columns by which the last of a key's rows is found; of upsert.
    """

    kind: str
    name: Name
    mode: str
    schema: str
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()

    @property
    def named(self) -> sql.Identifier:
        """Its name as SQL."""
        return self.name.identifier

    @property
    def names(self) -> list[str]:
        """The data frame's columns, in order."""
        return [column.name for column in self.columns]

    @property
    def targets(self) -> sql.Composed:
        """Its columns, as SQL."""
        return sql.SQL(", ").join(sql.Identifier(column.target) for column in self.columns)

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


def target_of(options: Options, schema: pa.Schema, *, overwrite: bool) -> Target:
    """What these options and columns mean.

    Raises:
        OptionError: they do not go together; the option is named.
    """
    topic, table, mode = options["topic"], options["table"], options["writeMode"]
    if (topic is None) == (table is None):
        raise OptionError("one of the options topic and table says where to write")
    staging, order = options["stagingSchema"], tuple(options["orderBy"] or ())
    for field in schema:
        if not sink_columns.can_be_sent(field.type):
            raise OptionError(f'column "{field.name}" cannot be written as it is ({field.type}): cast it')
    if mode != "upsert" and order:
        raise OptionError("option orderBy goes with writeMode upsert")
    if topic is not None:
        if overwrite or mode != "append":
            what = "Spark's mode overwrite (complete)" if overwrite else f'option writeMode "{mode}"'
            raise OptionError(f"{what} cannot be of a topic, which is only appended to: option topic")
        return Target("topic", topic, "append", staging, _topic_columns(schema))
    for field in schema:
        if sink_columns.has_inner_bytes(field.type):
            raise OptionError(
                f'column "{field.name}" cannot be written to a table (option table): it has binary values '
                "within, which JSON has not: cast them, or write hex()"
            )
    columns = tuple(Column(field.name, field.name, sink_columns.is_nested(field.type)) for field in schema)
    if overwrite:
        if mode == "upsert":
            raise OptionError("option writeMode upsert and Spark's mode overwrite exclude each other")
        mode = "overwrite"
    missing = [name for name in order if name.lower() not in {field.name.lower() for field in schema}]
    if missing:
        raise OptionError(f'option orderBy names "{missing[0]}", which the data frame has not')
    return Target("table", table, mode, staging, columns, order)


def _topic_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Payload, key and headers among a data frame's columns."""
    found: dict[str, pa.DataType] = {}
    for field in schema:
        if field.name.lower() not in TOPIC_COLUMNS:
            raise OptionError(
                f'a topic takes the columns value, key and headers, not "{field.name}" (option topic): '
                "SELECT to_json(struct(*)) AS value"
            )
        found[field.name] = field.type
    payloads = [name for name in found if name.lower() in PAYLOADS]
    if len(payloads) != 1:
        raise OptionError("a topic wants one column value (or payload), the events' payload (option topic)")
    columns = []
    for name, type_ in found.items():
        nested = sink_columns.is_nested(type_)
        target, known = name.lower(), "VARCHAR"
        if name in payloads:
            target, known = "payload", sink_columns.payload_type(type_) or ""
        elif target == "key":
            known = sink_columns.key_type(type_) or ""
        elif not (nested or pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            known = ""
        if not known:
            raise OptionError(f'column "{name}" of a topic cannot be of type {type_} (option topic): cast it')
        columns.append(Column(name, target, nested, known))
    return tuple(columns)
