"""`dead_letter`: rows that do not parse or break a rule are told apart, with the reason.

    judged = dead_letters(events, Rules("id INT, price DOUBLE", {"price": "price > 0"}))

gives the rows with `_reason`, which is NULL of good ones, and `_event`, the event as JSON. A rule is a
condition in Spark's SQL; it is broken where it is false or NULL. Without a schema the events' own columns are
judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as f

from ..errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYLOAD = "after"
_CORRUPT = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a good row is.

    Args:
        schema: of the JSON in the events' column `after`, as Spark's DDL; None where they have columns.
        conditions: by the name that stands in the reason.
    """

    schema: str | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)


def dead_letters(events: DataFrame, rules: Rules) -> DataFrame:
    """The rows with `_reason` and `_event`.

    Raises:
        OptionError: schema or rules are wrong.
    """
    if rules.schema is None and not rules.conditions:
        raise OptionError("neither a schema nor a rule says what a good row is (dead_letter.schema, .rules)")
    try:
        return _judged(events, rules)
    except (AnalysisException, ParseException) as error:
        what = str(error).splitlines()[0]
        raise OptionError(f"a rule or the schema is wrong (dead_letter.rules, .schema): {what}") from None


def _judged(events: DataFrame, rules: Rules) -> DataFrame:
    reason = f.lit(None).cast("string")
    rows = events
    if rules.schema is None:
        rows = rows.withColumn("_event", f.to_json(f.struct(*events.columns)))
    else:
        if PAYLOAD not in events.columns:
            raise OptionError('the events have no column "after": a schema is for envelope json')
        if "op" in events.columns:
            events = events.where("op <> 'schema'")  # What says that the table has changed is no row of it.
        text = f.col(PAYLOAD).cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        row = f.from_json(text, f"{rules.schema}, {_CORRUPT} STRING", options)
        rows = events.select(text.alias("_event"), row.alias("_row")).select("_event", "_row.*")
        reason = (
            f.when(f.col("_event").isNull(), "no payload")
            .when(f.col(_CORRUPT).isNotNull(), "does not parse as the schema")
            .otherwise(reason)
        )
    for name, condition in rules.conditions.items():
        broken = ~f.coalesce(f.expr(condition), f.lit(False))
        reason = f.coalesce(reason, f.when(broken, f.lit(f"breaks rule {name}: {condition}")))
    return rows.withColumn("_reason", reason).drop(_CORRUPT)
