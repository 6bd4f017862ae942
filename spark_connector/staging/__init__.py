"""How rows come from Spark into a table or a topic: staged by the tasks, published by the driver at once.

    task     CREATE TABLE stage_<time>_<id> as the target is; COPY rows FROM STDIN      nobody sees them
    driver   BEGIN; is the batch done?; target <- the stages; mark the batch; COMMIT    all at once, or not
             DROP the stages

A stage belongs to one attempt of one task, so a task that is tried again has another, and only those count
whose messages came to the driver. The mark of a streaming query is a row of `sinks` in the same
transaction as its rows: the last batch that this query has written to this target. A batch that comes again
(Spark died after the COMMIT and before its own) finds the mark and is done. What a killed task or driver
leaves behind is dropped by a later write of anybody's, when it is older than `STAGE_KEPT_S`; what a streaming
query leaves, by its own next batch.
"""

from .batch_marks import Batch, make_schema, marks
from .publishing import Merge, publish
from .stages import Stage, discard, owner_of, stage
from .target import PAYLOADS, TOPIC_COLUMNS, Column, Target, target_of
from .upserting import key_columns

__all__ = [
    "PAYLOADS", "TOPIC_COLUMNS", "Batch", "Column", "Merge", "Stage", "Target", "discard", "key_columns",
    "make_schema", "marks", "owner_of", "publish", "stage", "target_of",
]  # fmt: skip
