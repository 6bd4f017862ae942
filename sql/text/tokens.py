"""The tokens of a statement with exact positions, as DuckDB 2.0 splits them.

sqlglot's tokenizer returns everything after EXPLAIN, PREPARE, EXECUTE or CALL as one string, and DML is
split by tokens here rather than regenerated, so this scanner is ducktail's own. It must never see less than
DuckDB does: a comment or a string to this scanner must be one to DuckDB too. Verified against DuckDB 2.0.0:
comments nest, `--` ends at a carriage return too, back-quotes and double quotes name identifiers, `$ 1` is
a parameter, and only the spaces in `_SPACE` separate tokens.

For logs, a statement can be written without its values: quoted texts and numbers become `?`, because a
literal may be a password, a name or a card number, and drivers that put parameters into the text make each
of them a literal.

`occurs` tests whether a pattern occurs in a text of any length. A regular expression holds Python's lock
while it runs, and on megabytes a pattern with many words takes a second or more, in which no other thread
runs, including the event loop. A long text is therefore searched window by window.

`RESERVED` contains DuckDB's keywords from `duckdb_keywords()` that are reserved, or may only name types or
functions. A test compares them with the installed DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.errors import ProgramLimitExceeded, SyntaxError_

# Token kinds other than the token's own upper-case text.
STRING = "<string>"
NUMBER = "<number>"
QUOTED = "<quoted>"
PARAMETER = "<parameter>"


class Token(NamedTuple):
    """One token.

    Args:
        kind: the upper-case text of a word or operator, or one of the constants above.
        text: as the user wrote it, quotes included.
        start: position of its first character in the text, from 0; `end` is after its last one.
        depth: the number of open parentheses around it; an opening and its closing parenthesis have the outer
            depth.
        cases: the number of open CASE expressions around it; CASE and its END have the outer number.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int
    cases: int

    @property
    def is_word(self) -> bool:
        """True if it is an unquoted word: a keyword or a name."""
        first = self.kind[0]
        return first.isalpha() or first == "_" or first > "\x7f"

    @property
    def is_name(self) -> bool:
        """True if it can be an identifier: an unquoted word or a quoted one."""
        return self.kind == QUOTED or self.is_word

    @property
    def name(self) -> str:
        """The identifier of the token, unquoted; case is preserved."""
        if self.kind == QUOTED:
            quote = self.text[0]
            return self.text[1:-1].replace(quote * 2, quote)
        return self.text

    @property
    def value(self) -> str:
        """The value of a string literal; the text of another token."""
        return string_value(self.text) if self.kind == STRING else self.text


_SPACES = r"\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff"
_ODD_SPACE = re.compile(rf"[{_SPACES}]")
_SPACE = rf"[ \t\n\v\f\r{_SPACES}]"
# All characters beyond ASCII except those spaces may be part of a name.
_LETTER = rf"[^\x00-\x40\x5b-\x5e\x60\x7b-\x7f{_SPACES}]"
_LETTER_OR_DIGIT = rf"[^\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f{_SPACES}]"
_IN_WORD = rf"[^\x00-\x23\x25-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f{_SPACES}]"
# A match blocks all other threads. So the pattern is possessive throughout, because backtracking takes ten
# times as long, and matches only a bounded part of unbounded repetitions (`space`, `quote`: more may follow).
_AT_A_TIME = 10_000
_TOKEN = re.compile(
    rf"""(?:{_SPACE}++|--[^\n\r]*+){{0,{_AT_A_TIME}}}+(?:
    (?P<space>(?={_SPACE}|--))
  | (?P<comment>/\*)
  | (?P<string>[xXbBnN]?'[^']*+(?:''[^']*+){{0,{_AT_A_TIME}}}+'(?!')
              |[eE]'[^'\\]*+(?:(?:''|\\.)[^'\\]*+){{0,{_AT_A_TIME}}}+'(?!'))
  | (?P<quoted>"[^"]*+(?:""[^"]*+){{0,{_AT_A_TIME}}}+"(?!")|`[^`]*+(?:``[^`]*+){{0,{_AT_A_TIME}}}+`(?!`))
  | (?P<quote>[xXbBnNeE]?'|["`])
  | (?P<dollar>\$(?:{_LETTER}{_LETTER_OR_DIGIT}*+)?\$)
  | (?P<parameter>\${_SPACE}*+{_LETTER_OR_DIGIT}++|\?\d*+)
  | (?P<number>\d[\d_]*+(?:\.[\d_]*+)?+(?:[eE][+-]?\d++)?|\.\d[\d_]*+(?:[eE][+-]?\d++)?)
  | (?P<word>{_LETTER}{_IN_WORD}*+)
  | (?P<operator>::|:=|->>|->|=>|==|<=|>=|<>|!=|\|\||\*\*|//|[-+*/%^&|~!@\#<>=.,;:()\[\]{{}}])
  | (?P<end>\Z)
  | (?P<bad>.))""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
# The continuation after an opening quote, or after the last of such parts; by the quote.
_MORE = {
    quote: re.compile(rf"[^{quote}]*+(?:{quote * 2}[^{quote}]*+){{0,{_AT_A_TIME}}}+") for quote in "'\"`"
}
_MORE_ESCAPED = re.compile(rf"[^'\\]*+(?:(?:''|\\.)[^'\\]*+){{0,{_AT_A_TIME}}}+", re.DOTALL)
# DuckDB's parser recurses into each: 100,000 nested subqueries overflow the process's stack, and 30,000 joins
# take a minute without interruption. It limits expressions to 1,000 itself.
BRACKETS_MAX = 1_000
_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_BACKSLASH = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def plain_spaces(text: str) -> str:
    """The text with a blank for each space beyond ASCII that separates tokens, at the same positions.

    DuckDB does the same before it parses, and counts positions in bytes of the result.

    >>> plain_spaces("SELECT\u00a0'\u00a0'")
    "SELECT '\\xa0'"
    """
    if not occurs(_ODD_SPACE, text):
        return text
    parts, last = [], 0
    for token in tokenize(text):
        parts += [_ODD_SPACE.sub(" ", text[last : token.start]), text[token.start : token.end]]
        last = token.end
    return "".join([*parts, _ODD_SPACE.sub(" ", text[last:])])


def tokenize(text: str) -> tuple[Token, ...]:
    """Divide a text into its tokens, without comments and spaces.

    Raises:
        SyntaxError_: a quote or comment is open, or a character is invalid; the error has the position.
        ProgramLimitExceeded: more than BRACKETS_MAX parentheses are open, or prefixes @, into which DuckDB
            also recurses without a bound.
    """
    tokens: list[Token] = []
    depth = cases = place = 0
    previous = ""
    match = _TOKEN.match
    while True:
        found = match(text, place)
        assert found is not None and found.lastgroup is not None
        group = found.lastgroup
        start, place = found.span(group)
        if group == "end":
            if "@" in text and sum(token.kind == "@" for token in tokens) > BRACKETS_MAX:
                raise ProgramLimitExceeded(f"a statement can have at most {BRACKETS_MAX} operators @")
            return tuple(tokens)
        if group == "space":
            continue
        if group == "comment":
            place = _comment_end(text, start)
            continue
        raw = found[group]
        if group == "word":
            # Only ASCII words can be keywords: the upper case of a long s would turn another word into one.
            kind = raw.upper() if raw.isascii() else raw
            if kind == "CASE" and previous not in (".", "AS"):
                tokens.append(Token(kind, raw, start, place, depth, cases))
                cases += 1
                previous = kind
                continue
            if kind == "END" and cases and previous not in (".", "AS"):
                cases -= 1
        elif group == "operator":
            kind = raw
            if raw in _OPENING:
                tokens.append(Token(kind, raw, start, place, depth, cases))
                depth += 1
                if depth > BRACKETS_MAX:
                    raise _too_deep(start)
                previous = kind
                continue
            if raw in _CLOSING:
                depth = max(0, depth - 1)
        elif group == "dollar":
            place = _dollar_end(text, start, raw)
            kind, raw = STRING, text[start:place]
        elif group == "quote":
            place = _quote_end(text, start, place)
            raw = text[start:place]
            kind = STRING if raw[-1] == "'" else QUOTED
        elif group == "bad":
            raise _bad_character(text, start)
        else:
            kind = _KIND_OF_GROUP[group]
        tokens.append(Token(kind, raw, start, place, depth, cases))
        previous = kind


_KIND_OF_GROUP = {"string": STRING, "quoted": QUOTED, "parameter": PARAMETER, "number": NUMBER}


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise SyntaxError_("unterminated /* comment", position=start + 1)


def _quote_end(text: str, start: int, place: int) -> int:
    """The end of a string or a quoted name that is long, or is not closed.

    Args:
        start: its position, including a letter that gives its kind.
        place: the position after its opening quote.
    """
    opening, quote = place - 1, text[place - 1]
    more = _MORE_ESCAPED if text[start] in "eE" else _MORE[quote]
    while True:
        found = more.match(text, place)
        assert found is not None, "it matches nothing, too"
        end = found.end()
        if text.startswith(quote, end) and not text.startswith(quote * 2, end):
            return end + 1
        if end == place:
            raise _bad_character(text, opening)
        place = end


def _dollar_end(text: str, start: int, tag: str) -> int:
    end = text.find(tag, start + len(tag))
    if end < 0:
        raise SyntaxError_("unterminated dollar-quoted string", position=start + 1)
    return end + len(tag)


def _too_deep(start: int) -> ProgramLimitExceeded:
    return ProgramLimitExceeded(
        f"a statement can have at most {BRACKETS_MAX} brackets in each other", position=start + 1
    )


def _bad_character(text: str, start: int) -> SyntaxError_:
    character = text[start]
    if character == "'":
        return SyntaxError_("unterminated quoted string", position=start + 1)
    if character in '"`':
        return SyntaxError_("unterminated quoted identifier", position=start + 1)
    return SyntaxError_(f'syntax error at or near "{character}"', position=start + 1)


def string_value(text: str) -> str:
    """The value of a string literal: plain, E'' with escapes, or dollar-quoted."""
    if text[0] == "$":
        tag = text[: text.index("$", 1) + 1]
        return text[len(tag) : -len(tag)]
    body = text[text.index("'") + 1 : -1].replace("''", "'")
    return _BACKSLASH.sub(_unescape, body) if text[0] in "eE" else body


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPES.get(code, code)


class StatementPiece(NamedTuple):
    """One statement of a longer text, and its position there (in characters, from 0)."""

    text: str
    offset: int


def split_pieces(text: str) -> list[StatementPiece]:
    """Split a text at its semicolons; parts without a token (spaces, comments) are omitted.

    A semicolon in parentheses also ends the statement, because DuckDB's parser would fail there: so no piece
    ever contains two statements.

    Raises:
        SyntaxError_: a piece is invalid; the error has the position in the whole text.
    """
    pieces: list[StatementPiece] = []
    first: Token | None = None
    last: Token | None = None
    for token in tokenize(text):
        if token.kind != ";":
            first, last = first or token, token
        elif first is not None and last is not None:
            pieces.append(StatementPiece(text[first.start : last.end], first.start))
            first = last = None
    if first is not None and last is not None:
        pieces.append(StatementPiece(text[first.start : last.end], first.start))
    return pieces


def split_statements(text: str) -> list[str]:
    """The statements of a text, without their semicolons; see `split_pieces`.

    >>> split_statements("select ';' ; -- nothing\\n ; select 2")
    ["select ';'", 'select 2']
    """
    return [piece.text for piece in split_pieces(text)]


def number_question_marks(text: str) -> str:
    """Number each `?` as `$1`, `$2` and so on, so that parts of the text may be moved.

    A text that has `$` parameters as well is unchanged: DuckDB refuses the mixture.

    >>> number_question_marks("select ?, '?', ?")
    "select $1, '?', $2"
    """
    if "?" not in text:
        return text
    marks = [token for token in tokenize(text) if token.kind == PARAMETER]
    if not marks or any(token.text[0] == "$" for token in marks):
        return text
    parts: list[str] = []
    place = 0
    for number, mark in enumerate(marks, start=1):
        given = mark.text[1:]
        following = text[mark.end : mark.end + 1]
        gap = " " if following.isalnum() or following in ("_", "$") else ""
        parts += [text[place : mark.start], "$", given or str(number), gap]
        place = mark.end
    return "".join([*parts, text[place:]])


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at index `opening`.

    Raises:
        SyntaxError_: the parenthesis is not closed.
    """
    depth = tokens[opening].depth
    for index in range(opening + 1, len(tokens)):
        if tokens[index].depth == depth and tokens[index].kind in _CLOSING:
            return index
    token = tokens[opening]
    raise SyntaxError_(f'"{token.text}" is not closed', position=token.start + 1)


MASK = "?"
# The maximum length of a statement in a log line.
SHOWN_CHARS_MAX = 1000


# The words before a secret that statements take.
SECRET_WORDS = frozenset({"HEADERS", "PASSWORD", "SASL_PASSWORD", "SECRET", "SSL_KEY"})


def masked(text: str) -> str:
    """The tokens of a statement, separated by spaces, without literals and comments; long ones are cut.

    A secret that is written as a name by mistake, in double quotes or without quotes, is omitted as well. So
    is a text without tokens, because a quote in it is not closed.
    """
    try:
        tokens = tokenize(text)
    except SyntaxError_:
        return MASK
    words: list[str] = []
    size = 0
    before, hides = "", False  # the kinds of the tokens before; a value of a secret option goes on
    for token in tokens:
        hides = (hides and token.kind not in (",", ")", ";")) or (
            token.kind == "=" and before in SECRET_WORDS
        )
        is_value = (hides and token.kind != "=") or (before in SECRET_WORDS and token.kind == QUOTED)
        word = MASK if is_value or token.kind in (STRING, NUMBER) else token.text
        before = token.kind
        if size + len(word) > SHOWN_CHARS_MAX:
            words.append("...")
            break
        words.append(word)
        size += len(word) + 1
    return " ".join(words)


# One search of a window takes some 50 ms for the slowest pattern.
WINDOW_CHARS = 256 * 1024
# The overlap of two windows: any match with the longest words, and blanks between, is whole in one of them.
OVERLAP_CHARS = 64 * 1024


def occurs(pattern: re.Pattern[str], text: str, words: Sequence[str] = ()) -> bool:
    """True if a pattern of bounded length, except for blanks, occurs in a text.

    Args:
        words: words in small letters, one of which is in each match: searching for them takes a hundredth of
            the time.

        At a window's end the pattern may match a text that continues differently (`jsonb` in `jsonbx`):
        callers examine the tokens next.
    """
    if words:
        small = text.lower()
        if not any(word in small for word in words):
            return False
    if len(text) <= WINDOW_CHARS:
        return pattern.search(text) is not None
    starts = range(0, len(text), WINDOW_CHARS)
    return any(pattern.search(text, at, at + WINDOW_CHARS + OVERLAP_CHARS) is not None for at in starts)


_RESERVED = """
ALL ANALYSE ANALYZE AND ANY ARRAY AS ASC ASYMMETRIC BOTH CASE CAST CHECK COLLATE COLUMN
CONSTRAINT CREATE DEFAULT DEFERRABLE DESC DESCRIBE DISTINCT DO ELSE END EXCEPT FALSE FETCH FOR
FOREIGN FROM GROUP HAVING IN INITIALLY INTERSECT INTO LAMBDA LATERAL LEADING LIMIT NOT NULL
OFFSET ON ONLY OR ORDER PIVOT PIVOT_LONGER PIVOT_WIDER PLACING PRIMARY QUALIFY REFERENCES
RETURNING SELECT SHOW SOME SUMMARIZE SYMMETRIC TABLE THEN TO TRAILING TRUE UNION UNIQUE UNPIVOT
USING VARIADIC WHEN WHERE WINDOW WITH
"""

_TYPE_OR_FUNCTION = """
ANTI ASOF AT AUTHORIZATION BINARY BY COLLATION CONCURRENTLY CROSS FREEZE FULL GLOB ILIKE INNER
IS ISNULL JOIN LEFT LIKE NATURAL NOTNULL OUTER OVERLAPS POSITIONAL RIGHT SEMI SIMILAR
TABLESAMPLE UNPACK VERBOSE
"""

RESERVED = frozenset(_RESERVED.split())
TYPE_OR_FUNCTION = frozenset(_TYPE_OR_FUNCTION.split())
NOT_NAMES = RESERVED | TYPE_OR_FUNCTION
