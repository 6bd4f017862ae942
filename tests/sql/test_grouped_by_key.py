"""GROUP BY lists that are completed: what odd texts cost."""

from __future__ import annotations

from collections.abc import Sequence

from ducktail.sql.pipeline import grouped_by_key
from ducktail.sql.text.tokens import Token, tokenize


class _Counted(list[Token]):
    """Tokens that count their look-ups."""

    looked = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def, override]
        self.looked += 1
        return super().__getitem__(at)


def _looked(count: int) -> int:
    tokens: Sequence[Token] = _Counted(tokenize("SELECT 1 FROM t" + " GROUP BY v" * count))
    places = [at for at, token in enumerate(list(tokens)[:-1]) if token.kind == "GROUP"]
    for at in places:
        # No table is looked up: no column is missing.
        assert list(grouped_by_key._completed(None, tokens, at)) == []  # type: ignore[arg-type]
    assert isinstance(tokens, _Counted)
    return tokens.looked


def test_lists_behind_each_other_cost_linear_time() -> None:
    assert _looked(800) < 3 * _looked(400)
