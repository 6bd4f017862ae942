"""The openings of our statements: the words, the rule that reads the rest, and the form for a hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import grammar_groups as groups
from . import grammar_others as others
from . import grammar_streams as streams
from .grammar import Grammar
from .statements import Statement

Rule = Callable[[Grammar], Statement]


@dataclass(frozen=True, slots=True)
class Opening:
    """An opening.

    Args:
        rule: reads what stands after the words.
        form: the statement's form, for the hint of a syntax error that has none.
    """

    rule: Rule
    form: str


def _row(rule: Rule, form: str) -> Opening:
    return Opening(rule, form)


_CREATE_STREAM = (
    "CREATE STREAM [IF NOT EXISTS] s ON t [(column, ...)] [OPERATIONS INSERT, UPDATE, DELETE]"
    " [WHERE predicate] [WITH (option = value, ...)]"
)
_ALTER_STREAM = "ALTER STREAM s { SET (option = value, ...) | RENAME TO s2 | RESYNC }"
_COMMENT = "COMMENT ON STREAM s IS '...'"
_DROP_STREAM = "DROP STREAM [IF EXISTS] s [CASCADE]"

_ROWS: dict[str, Opening] = {
    "CREATE [CHANGE] STREAM": _row(streams.create_stream, _CREATE_STREAM),
    "CREATE TOPIC": _row(streams.create_topic, "CREATE TOPIC [IF NOT EXISTS] s [WITH (option = value, ...)]"),
    "CREATE CONSUMER GROUP": _row(
        groups.create_group,
        "CREATE CONSUMER GROUP [IF NOT EXISTS] g ON s "
        "[START { EARLIEST | LATEST | AFTER lsn | AT TIMESTAMP 'ts' }] [WITH (...)]",
    ),
    "CREATE BOOKMARK": _row(groups.create_bookmark, "CREATE BOOKMARK b ON s [CONSUMER GROUP g | AT '{...}']"),
    "CREATE USER": _row(others.create_user, "CREATE USER u PASSWORD '...' [SUPERUSER]"),
    "CREATE ROLE": _row(others.create_user, "CREATE USER u PASSWORD '...' [SUPERUSER]"),
    "ALTER [CHANGE] STREAM": _row(streams.alter_stream, _ALTER_STREAM),
    "ALTER TOPIC": _row(streams.alter_topic, "ALTER TOPIC s { SET (option = value, ...) | RENAME TO s2 }"),
    "ALTER CONSUMER GROUP": _row(
        groups.alter_group, "ALTER CONSUMER GROUP g ON s { SEEK place | SET (...) | PARK ... | RELEASE ... }"
    ),
    "ALTER USER": _row(others.alter_user, "ALTER USER u [PASSWORD '...'] [SUPERUSER | NOSUPERUSER]"),
    "ALTER ROLE": _row(others.alter_user, "ALTER USER u [PASSWORD '...'] [SUPERUSER | NOSUPERUSER]"),
    "DROP [CHANGE] STREAM": _row(streams.drop_stream, _DROP_STREAM),
    "DROP TOPIC": _row(streams.drop_topic, "DROP TOPIC [IF EXISTS] s [CASCADE]"),
    "DROP CONSUMER GROUP": _row(groups.drop_group, "DROP CONSUMER GROUP [IF EXISTS] g ON s"),
    "DROP BOOKMARK": _row(groups.drop_bookmark, "DROP BOOKMARK [IF EXISTS] b ON s"),
    "DROP USER": _row(others.drop_user, "DROP USER [IF EXISTS] u"),
    "DROP ROLE": _row(others.drop_user, "DROP USER [IF EXISTS] u"),
    "COMMENT ON [CHANGE] STREAM": _row(streams.comment_on_stream, _COMMENT),
    "COMMENT ON TOPIC": _row(streams.comment_on_topic, "COMMENT ON TOPIC s IS '...'"),
    "SHOW [CHANGE] STREAMS": _row(streams.show_streams, "SHOW STREAMS [LIKE 'pattern']"),
    "SHOW TOPICS": _row(streams.show_topics, "SHOW TOPICS [LIKE 'pattern']"),
    "SHOW CONSUMER GROUPS": _row(groups.show_groups, "SHOW CONSUMER GROUPS [ON s]"),
    "SHOW PARTITIONS ON": _row(streams.show_partitions, "SHOW PARTITIONS ON s"),
    "SHOW OFFSETS ON": _row(groups.show_offsets, "SHOW OFFSETS ON s CONSUMER GROUP g"),
    "SHOW MEMBERS ON": _row(groups.show_members, "SHOW MEMBERS ON s CONSUMER GROUP g"),
    "SHOW PARKED ON": _row(groups.show_parked, "SHOW PARKED ON s CONSUMER GROUP g"),
    "SHOW READ POSITION": _row(
        groups.show_read_position, "SHOW READ POSITION ON s CONSUMER GROUP g [MEMBER 'm']"
    ),
    "SHOW CREATE [CHANGE] STREAM": _row(streams.show_create_stream, "SHOW CREATE STREAM s"),
    "SHOW CREATE TOPIC": _row(streams.show_create_stream, "SHOW CREATE STREAM s"),
    "SHOW CHANGES FOR": _row(streams.show_changes, "SHOW CHANGES FOR t [SINCE 'timestamp'] [LIMIT n]"),
    "SHOW BOOKMARKS": _row(groups.show_bookmarks, "SHOW BOOKMARKS [ON s]"),
    "SHOW CHECKPOINTS": _row(others.show_checkpoints, "SHOW CHECKPOINTS [ON s]"),
    "SHOW NODES": _row(others.show_nodes, "SHOW NODES"),
    "SHOW PLACEMENT": _row(others.show_placement, "SHOW PLACEMENT"),
    "INSTALL PLACEMENT": _row(others.install_placement, "INSTALL PLACEMENT '...'"),
    "DESCRIBE [CHANGE] STREAM": _row(streams.describe_stream, "DESCRIBE STREAM s"),
    "DESCRIBE CONSUMER GROUP": _row(groups.describe_group, "DESCRIBE CONSUMER GROUP g ON s"),
    "CHECK STREAM": _row(streams.check_stream, "CHECK STREAM s"),
    "COMMIT OFFSET": _row(
        groups.commit_offset, "COMMIT OFFSET PARTITION p AT lsn ON s CONSUMER GROUP g [MEMBER 'm']"
    ),
    "COMMIT OFFSETS": _row(
        groups.commit_offsets, "COMMIT OFFSETS [AT '{\"0\": 17, ...}'] ON s CONSUMER GROUP g [MEMBER 'm']"
    ),
    "LEAVE CONSUMER GROUP": _row(groups.leave_group, "LEAVE CONSUMER GROUP g ON s MEMBER 'm'"),
    "REPORT PIPELINE": _row(others.report_pipeline, "REPORT PIPELINE 'name' AS '{...}'"),
    "PUBLISH": _row(
        others.publish,
        "PUBLISH TO s [KEY expr] [HEADERS json] { 'payload' | VALUES (...) | SELECT ... } [WITH (...)]",
    ),
    "LISTEN": _row(others.listen, "LISTEN channel"),
    "UNLISTEN": _row(others.unlisten, "UNLISTEN { channel | * }"),
    "NOTIFY": _row(others.notify, "NOTIFY channel [, 'payload']"),
    "GRANT": _row(others.grant, "GRANT privilege, ... ON { t | s | SCHEMA n | DATABASE } TO u"),
    "REVOKE": _row(others.revoke, "REVOKE privilege, ... ON { t | s | SCHEMA n | DATABASE } FROM u"),
}


def _spelled() -> dict[tuple[str, ...], Opening]:
    """The rows by their words, with CHANGE and without."""
    table: dict[tuple[str, ...], Opening] = {}
    for words, opening in _ROWS.items():
        table[tuple(words.replace("[CHANGE] ", "").split())] = opening
        table[tuple(words.replace("[CHANGE]", "CHANGE").split())] = opening
    return table


OPENINGS = _spelled()
_WORDS_MAX = max(len(words) for words in OPENINGS)


def find_opening(g: Grammar) -> Opening | None:
    """Take the words of one of our openings; None, with nothing taken, where none stands.

    `DESCRIBE stream` alone describes a table of that name.
    """
    start = g.index
    kinds = [g.peek(ahead) for ahead in range(_WORDS_MAX)]
    for count in range(_WORDS_MAX, 0, -1):
        opening = OPENINGS.get(tuple(kinds[:count]))
        if opening is None:
            continue
        g.index += count
        if kinds[0] == "DESCRIBE" and kinds[count - 1] == "STREAM" and not g.is_name_ahead():
            g.index = start
            continue
        return opening
    return None
