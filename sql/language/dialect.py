"""The dialect: sqlglot's DuckDB and what SQL.md adds to it, nothing more.

Registered through the entry point `sqlglot.dialects`, so that `sqlglot.parse_one(text,
dialect="ducktail")` reads our language. The session sets `visible_tables` and `scans` on the
parser (tree.py); without them no table called stream or topic is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, TypeVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from ..text.tokens import tokenize
from .grammar import Grammar
from .grammar_scan import find_scans
from .nodes import OurStatement, StreamScan, Transactions
from .openings import find_opening
from .render import render_scan, render_statement
from .statements import Name, Scan

E = TypeVar("E", bound=exp.Expr)

_NO_TOKEN = Token(TokenType.SENTINEL, "")

# Where in the text the select list of a Select ends, from 0: edits of the user's text go there.
LIST_END = "ducktail_list_end"


def _identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


def _ours_or(otherwise: str) -> Callable[[DuckDBParser], exp.Expr]:
    """A row: a statement of ours if it is one, else what the word begins in DuckDB."""

    def parse(parser: DuckDBParser) -> exp.Expr:
        assert isinstance(parser, DucktailParser)
        ours = parser.parse_ours()
        if ours is not None:
            return ours
        row: Callable[[DuckDBParser], exp.Expr] = DuckDBParser.STATEMENT_PARSERS[TokenType[otherwise]]
        return row(parser)

    return parse


class DucktailParser(DuckDBParser):
    """DuckDB's parser with our statements and stream scans."""

    STATEMENT_PARSERS: ClassVar = {
        **DuckDBParser.STATEMENT_PARSERS,
        **{
            TokenType[word]: _ours_or(word)
            for word in (
                "CREATE",
                "ALTER",
                "DROP",
                "COMMENT",
                "COMMIT",
                "SHOW",
                "DESCRIBE",
                "GRANT",
                "REVOKE",
            )
        },
    }

    PLACEHOLDER_PARSERS: ClassVar = {
        **DuckDBParser.PLACEHOLDER_PARSERS,
        TokenType.PLACEHOLDER: lambda self: self.parse_question_mark(),
    }

    # Set by who has a session; see tree.py.
    scans: dict[int, Scan] | None = None
    failed_at: Token | None = None

    def parse_ours(self) -> exp.Expr | None:
        """The statement of ours that begins at the token before the next one, if one does."""
        text = self.sql[: self._tokens[-1].end + 1]
        start = self._prev.start
        tokens = [token for token in tokenize(text) if token.start >= start]
        grammar = Grammar(text, tokens)
        opening = find_opening(grammar)
        if opening is None:
            return None
        statement = opening.rule(grammar)
        grammar.expect_end()
        self._advance(len(self._tokens) - self._index)
        return OurStatement(this=statement)

    def parse_question_mark(self) -> exp.Placeholder:
        """`?` as the parameter that it is: the n-th of the text is `$n`."""
        before = self._tokens[: self._index]
        number = sum(token.token_type == TokenType.PLACEHOLDER for token in before)
        return self.expression(exp.Placeholder(this=str(number)))

    def _parse_statement(self) -> exp.Expr | None:
        # PUBLISH, LISTEN and the like are names to sqlglot's tokenizer: no row can have them.
        if self._curr and self._curr.token_type == TokenType.VAR and self._index == 0:
            self._advance()
            ours = self.parse_ours()
            if ours is not None:
                return ours
            self._retreat(0)
        return super()._parse_statement()

    def _parse_table(
        self,
        schema: bool = False,
        joins: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
        parse_bracket: bool = False,
        is_db_reference: bool = False,
        parse_partition: bool = False,
        consume_pipe: bool = False,
    ) -> exp.Expr | None:
        scan = None if schema or is_db_reference else self._parse_scan()
        if scan is None:
            return super()._parse_table(
                schema, joins, alias_tokens, parse_bracket, is_db_reference, parse_partition, consume_pipe
            )
        scan.set("pivots", self._parse_pivots())
        scan.set("sample", self._parse_table_sample())
        if joins:
            for join in self._parse_joins(alias_tokens=alias_tokens):
                scan.append("joins", join)
        return scan

    def _parse_scan(self) -> StreamScan | None:
        """A stream scan, if one begins here."""
        scan = self._known_scans().get(self._curr.start) if self._curr else None
        if scan is None:
            return None
        while self._curr and self._curr.start < scan.end:
            self._advance()
        return _scan_node(scan)

    def _known_scans(self) -> dict[int, Scan]:
        if self.scans is None:
            found = find_scans(tokenize(self.sql), self.sql, lambda name: False)
            self.scans = {scan.start: scan for scan in found}
        return self.scans

    def _parse_limit_options(self) -> exp.LimitOptions | None:
        if self._match_text_seq("TRANSACTIONS"):
            return Transactions()  # type: ignore[return-value]  # it stands where the options do
        return super()._parse_limit_options()

    def expression(self, instance: E, token: Token | None = None, comments: list[str] | None = None) -> E:
        """As the base does, noting where a select list ends."""
        if isinstance(instance, exp.Select) and self._prev:
            instance.meta[LIST_END] = self._prev.end + 1
        return super().expression(instance, token, comments)

    def _warn_unsupported(self) -> None:
        """Nothing: the user's text is not for the log, and DuckDB judges what sqlglot does not know."""

    def raise_error(self, message: str, token: Token = _NO_TOKEN) -> None:
        """As the base does, noting where."""
        self.failed_at = token or self._curr or None
        super().raise_error(message, token)


def _scan_node(scan: Scan) -> StreamScan:
    node = StreamScan(**dict(zip(("this", "db", "catalog"), _parts(scan.stream), strict=False)), scan=scan)
    if scan.alias is not None:
        columns = [_identifier(column) for column in scan.columns]
        node.set("alias", exp.TableAlias(this=_identifier(scan.alias), columns=columns or None))
    return node


def _parts(name: Name) -> Sequence[exp.Identifier]:
    return [_identifier(part) for part in reversed(name.parts)]


class DucktailGenerator(DuckDBGenerator):
    """DuckDB's generator with our nodes."""

    TRANSFORMS: ClassVar = {
        **DuckDBGenerator.TRANSFORMS,
        OurStatement: lambda self, node: render_statement(node.statement),
        StreamScan: lambda self, node: self.scan_sql(node),
        Transactions: lambda self, node: " TRANSACTIONS",
    }

    def scan_sql(self, node: StreamScan) -> str:
        """A scan with the tree's own alias, and what else DuckDB may put behind a table."""
        alias = self.sql(node, "alias")
        parts = [render_scan(node.scan), f" AS {alias}" if alias else ""]
        parts += [self.sql(pivot) for pivot in node.args.get("pivots") or ()]
        parts.append(self.sql(node, "sample"))
        parts += [self.sql(join) for join in node.args.get("joins") or ()]
        return "".join(parts)


class Ducktail(DuckDB):
    """Our dialect."""

    Parser = DucktailParser
    Generator = DucktailGenerator
