"""What a session needs of the other nodes: to have a statement run there, in a session of its own user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ...engine.waiting import Waiting
from ..results.results import Batch


class Peers(Protocol):
    """The sessions that one session has on other nodes, one on each; they are made when first asked."""

    def ask(
        self,
        node: str,
        text: str,
        parameters: Sequence[object] = (),
        take: Callable[[Batch], None] | None = None,
        *,
        again: bool = False,
        changes: bool = False,
    ) -> Waiting[str]:
        """Run a statement there.

        Args:
            take: is given the rows, batch by batch.
            again: it may be sent once more where a connection is found broken: it changes nothing, or
                the same twice.
            changes: it changes something: refused at the second time, it may be done.

        Returns:
            Its command tag.

        Raises:
            CannotConnect: 08001, the node cannot be reached. ConnectionLost: 08006, it was lost on the way:
                the outcome is unknown. ConnectionRefused: 08004, it is another cluster's.
            DucktailError: the node's own error.
        """

    def later(self, node: str, text: str) -> Future[Any] | None:
        """Have a statement run there whose answer nobody wants, after those that were asked before.

        Returns:
            What is done once it has been answered, or has failed; None where there is no session.
        """
