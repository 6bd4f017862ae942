"""Hints for users of other systems: a statement of such a system, and its equivalent in ducktail.

Examples are PostgreSQL's subscriptions, CockroachDB's changefeeds, ksqlDB's EMIT CHANGES and Snowflake's
CREATE OR REPLACE STREAM: each raises 42601 (or 0A000, for a feature that ducktail lacks) with ducktail's
statement in the hint. Source: docs/errors.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...engine.errors import DucktailError, NotSupported, SyntaxError_, UndefinedFunction
from ...engine.quoting import fold
from .tokens import NOT_NAMES, PARAMETER, QUOTED, STRING, Token

_FUNCTION = re.compile(r'[Ff]unction with name "?(\w+)"? does not exist')
_READ = "SELECT * FROM STREAM s CONSUMER GROUP g LIMIT 1000"

_COMMIT = "COMMIT OFFSETS ON s CONSUMER GROUP g, which commits what was read, or with AT '{\"0\": 17}'"
_SEEK = "Write ALTER CONSUMER GROUP g ON s SEEK TO { EARLIEST | LATEST | AFTER lsn | AT TIMESTAMP '...' }."
_PARK = "Write ALTER CONSUMER GROUP g ON s PARK PARTITION p AT lsn."

_AGAIN = "Drop it and make it again: DROP STREAM s; CREATE STREAM s ON t."

# The opening words of a statement, and the hint.
_OPENINGS: dict[tuple[str, ...], str] = {
    ("SUBSCRIBE",): f"A group reads with {_READ}, and polls with WAIT.",
    ("CREATE", "SUBSCRIPTION"): "A reader that keeps its place is CREATE CONSUMER GROUP g ON s.",
    ("CREATE", "CHANGEFEED"): "Write CREATE STREAM s ON t.",
    ("CREATE", "CHANGE", "TABLE"): "Write CREATE STREAM s ON t.",
    ("CREATE", "CDC"): "Write CREATE STREAM s ON t.",
    ("CREATE", "CONSUMER"): "Write CREATE CONSUMER GROUP g ON s.",
    ("CREATE", "QUEUE"): "A queue is a topic and a group: CREATE TOPIC q; CREATE CONSUMER GROUP g ON q.",
    ("DROP", "SUBSCRIPTION"): "Write DROP CONSUMER GROUP g ON s.",
    ("DROP", "CHANGEFEED"): "Write DROP STREAM s.",
    ("UNSUBSCRIBE",): "Nothing has to be ended: a member says LEAVE CONSUMER GROUP g ON s MEMBER 'm'.",
    ("JOIN", "CONSUMER"): "A member joins by reading: SELECT * FROM STREAM s CONSUMER GROUP g MEMBER 'm'.",
    ("CONSUME",): f"A group reads with {_READ}.",
    ("POLL",): f"A group polls with {_READ}; WAIT '5 s' behind the group waits for events.",
    ("DEQUEUE",): f"A group reads with {_READ}.",
    ("XREAD",): "Write SELECT * FROM STREAM s AFTER lsn LIMIT n; WAIT '5 s' is BLOCK.",
    ("XREADGROUP",): "Write SELECT * FROM STREAM s CONSUMER GROUP g MEMBER 'm' LIMIT n; WAIT '5 s' is BLOCK.",
    ("XACK",): f"Write {_COMMIT}.",
    ("XPENDING",): "Write SHOW OFFSETS ON s CONSUMER GROUP g.",
    ("XGROUP",): "Write CREATE CONSUMER GROUP g ON s.",
    ("XADD",): "Write PUBLISH TO s 'payload'.",
    ("XRANGE",): "Write SELECT * FROM STREAM s WHERE lsn BETWEEN a AND b.",
    ("ACK",): f"Write {_COMMIT}.",
    ("PRODUCE",): "Write PUBLISH TO s 'payload'.",
    ("ENQUEUE",): "Write PUBLISH TO s 'payload'.",
    ("COMMIT", "CONSUMER"): f"Write {_COMMIT}.",
    ("COMMIT", "GROUP"): f"Write {_COMMIT}.",
    ("SEEK",): _SEEK,
    ("RESET", "CONSUMER"): _SEEK,
    ("PARK",): _PARK,
    ("SKIP",): _PARK,
    ("SHOW", "CONSUMER", "GROUP"): "Write SHOW CONSUMER GROUPS, or DESCRIBE CONSUMER GROUP g ON s.",
}
# Functions with which programs of other systems read, commit and publish.
FUNCTIONS: dict[str, str] = {
    "poll": f"A poll is a query: {_READ}; WAIT '5 s' behind the group waits for events.",
    "consume": f"A group reads with {_READ}.",
    "subscribe": f"A group reads with {_READ}, and polls with WAIT.",
    "ack": f"Write {_COMMIT}.",
    "commit_offsets": f"Write {_COMMIT}.",
    "seek": _SEEK,
    "publish": "Write PUBLISH TO s 'payload', or INSERT INTO s (payload, key) VALUES (...).",
    "produce": "Write PUBLISH TO s 'payload', or INSERT INTO s (payload, key) VALUES (...).",
    "pg_logical_slot_get_changes": f"Write {_READ}, then {_COMMIT}.",
    "pg_logical_slot_peek_changes": f"Reading moves nothing: {_READ}.",
}
# Subjects of SHOW in other systems that are no table and no setting here.
SHOWN: dict[str, str] = {
    **dict.fromkeys(("group", "groups", "consumer", "consumers"), "Write SHOW CONSUMER GROUPS."),
    "subscriptions": "Write SHOW CONSUMER GROUPS.",
    **dict.fromkeys(("lag", "offsets"), "Write SHOW OFFSETS ON s CONSUMER GROUP g."),
    "changefeeds": "Write SHOW STREAMS.",
    "stream": "Write SHOW STREAMS, or DESCRIBE STREAM s.",
    "topic": "Write SHOW TOPICS, or DESCRIBE STREAM s.",
    "bookmark": "Write SHOW BOOKMARKS.",
    "member": "Write SHOW MEMBERS ON s CONSUMER GROUP g.",
    "members": "Write SHOW MEMBERS ON s CONSUMER GROUP g.",
    "parked": "Write SHOW PARKED ON s CONSUMER GROUP g.",
    "partitions": "Write SHOW PARTITIONS ON s.",
}
_NOT_SUPPORTED: dict[tuple[str, ...], str] = {
    ("CREATE", "OR", "REPLACE", "STREAM"): _AGAIN,
    ("CREATE", "OR", "REPLACE", "CHANGE", "STREAM"): _AGAIN,
    ("CREATE", "OR", "REPLACE", "TOPIC"): "Drop it and make it again: DROP TOPIC s; CREATE TOPIC s.",
}
_FIRSTS = frozenset(words[0] for words in (*_OPENINGS, *_NOT_SUPPORTED))


def foreign_opening(tokens: Sequence[Token]) -> DucktailError | None:
    """The error for a statement that begins as elsewhere, or None."""
    if not tokens or tokens[0].kind not in _FIRSTS:
        return None
    for table in (_OPENINGS, _NOT_SUPPORTED):
        for words, hint in table.items():
            if tuple(token.kind for token in tokens[: len(words)]) == words:
                return _error(tokens, words, hint)
    return None


def _error(tokens: Sequence[Token], words: tuple[str, ...], hint: str) -> DucktailError:
    last = tokens[len(words) - 1]
    if words in _NOT_SUPPORTED:
        what = " ".join(words)
        return NotSupported(f"{what} is not supported", hint=hint, position=1 + tokens[0].start)
    return SyntaxError_(f'syntax error at or near "{last.text}"', hint=hint, position=last.start + 1)


def foreign_clause(tokens: Sequence[Token]) -> SyntaxError_ | None:
    """The error for a clause in the syntax of another system, or None.

    Only clauses that DuckDB's own grammar also refuses have one: `FROM s consumer GROUP BY x` has an alias,
    and so has `SELECT emit changes`.
    """
    for index in range(1, len(tokens) - 1):
        pair = (tokens[index].kind, tokens[index + 1].kind)
        if pair == ("CONSUMER", "GROUP") and (name := _table_before(tokens, index)):
            following = tokens[index + 2] if index + 2 < len(tokens) else None
            if following is None or following.kind != "BY":
                return _near(tokens[index + 1], f"Write FROM STREAM {name} CONSUMER GROUP ....")
        if pair[0] == "GROUP" and _begins_group(tokens, index) and (name := _read_before(tokens, index)):
            return _near(tokens[index], f"Write FROM STREAM {name} CONSUMER GROUP {tokens[index + 1].text}.")
        if pair == ("EMIT", "CHANGES") and (name := _table_before(tokens, index)):
            return _near(
                tokens[index + 1],
                f"A stream is polled: SELECT * FROM STREAM {name} CONSUMER GROUP g LIMIT 1000.",
            )
        if pair == ("WAIT", STRING) and (name := _table_before(tokens, index)):
            return _near(tokens[index + 1], f"Write FROM STREAM {name} ... WAIT {tokens[index + 1].text}.")
        if pair == ("EMIT", "CHANGES") and index >= 2 and tokens[index - 2].kind in ("STREAM", "TOPIC"):
            return _near(
                tokens[index + 1], "A stream is polled: CONSUMER GROUP g keeps the place, WAIT '5 s' waits."
            )
    return None


def _begins_group(tokens: Sequence[Token], index: int) -> bool:
    """True if GROUP is followed by a group's name: `GROUP BY`, `CONSUMER GROUP g` and similar are not."""
    following = tokens[index + 1]
    named = _is_name(following) or following.kind in (STRING, PARAMETER)
    return named and following.kind != "BY" and tokens[index - 1].kind not in ("CONSUMER", "EXCLUDE")


def _read_before(tokens: Sequence[Token], index: int) -> str | None:
    """The relation in the FROM clause that ends just before `index`, or a stream scan."""
    table = _table_before(tokens, index)
    if table is not None:
        return table
    depth = tokens[index].depth
    for start in range(index - 2, 0, -1):
        if tokens[start].depth < depth or tokens[start].kind == "SELECT":
            return None
        if tokens[start].kind in ("STREAM", "TOPIC") and tokens[start - 1].kind in ("FROM", "JOIN"):
            return _name_at(tokens, start + 1, index)
    return None


def hint_for(error: DucktailError) -> str | None:
    """The equivalent of a function of another system; None for another error."""
    if not isinstance(error, UndefinedFunction):
        return None
    named = _FUNCTION.search(error.message)
    return None if named is None else FUNCTIONS.get(fold(named[1]))


def _near(token: Token, hint: str) -> SyntaxError_:
    return SyntaxError_(f'syntax error at or near "{token.text}"', hint=hint, position=token.start + 1)


def _table_before(tokens: Sequence[Token], index: int) -> str | None:
    """The table of the FROM clause that ends just before `index`, as text; None if there is none."""
    depth = tokens[index].depth
    for start in range(index - 1, -1, -1):
        if tokens[start].depth < depth or tokens[start].kind in ("SELECT", "STREAM", "TOPIC"):
            return None
        if tokens[start].depth == depth and tokens[start].kind in ("FROM", "JOIN"):
            return _name_at(tokens, start + 1, index)
    return None


def _name_at(tokens: Sequence[Token], first: int, end: int) -> str | None:
    if first >= end or not _is_name(tokens[first]):
        return None
    last = first + 1
    while last + 1 < end and tokens[last].kind == "." and tokens[last + 1].is_name:
        last += 2
    return "".join(token.text for token in tokens[first:last])


def _is_name(token: Token) -> bool:
    return token.kind == QUOTED or (token.is_word and token.kind not in NOT_NAMES)
