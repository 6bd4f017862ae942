"""Where an error stands in the text that the client sent.

A statement may be the third of a simple query, and its catalog names may have been spelt anew
before the session saw it; the position that the session reports counts in that last text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One statement, as it was sent and as it was run.

    Args:
        offset: characters of the client's text before the statement.
        text: the statement as it was sent.
        rewritten: the statement as the session got it.
    """

    offset: int
    text: str
    rewritten: str

    def position(self, at: int | None) -> int | None:
        """The place in the client's text (from 1) of place `at` in the rewritten one.

        None where the token stands in a part that was spelt anew: better no place than a wrong one.
        """
        if at is None:
            return None
        if self.rewritten == self.text:
            return self.offset + at
        before = _shared(self.text, self.rewritten)
        if at <= before:
            return self.offset + at
        room = min(len(self.text), len(self.rewritten)) - before
        after = min(_shared(self.text[::-1], self.rewritten[::-1]), room)
        if at > len(self.rewritten) - after:
            return self.offset + at + len(self.text) - len(self.rewritten)
        return None


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
