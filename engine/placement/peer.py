"""The identity of a node that connects to another one: in the options of its connection.

    ducktail.node, ducktail.cluster, ducktail.epoch    who it is, and by which placement it comes
    ducktail.database                                  the identity of its database
    ducktail.end_user                                  for whom; without it, for the user who connects

The node that is reached says the first four as parameters, and `ducktail.digest` of what its placement says.

Source: docs/cluster.md, "Between nodes".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidParameterValue, SerializationFailure

NODE, CLUSTER, EPOCH, END_USER = (
    "ducktail.node", "ducktail.cluster", "ducktail.epoch", "ducktail.end_user",
)  # fmt: skip
DIGEST, DATABASE = "ducktail.digest", "ducktail.database"
PEER_SETTINGS = (NODE, CLUSTER, EPOCH, DATABASE, END_USER)
_OURS = re.compile(r"placement of epoch (\d+)")


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that has connected.

    Args:
        end_user: for whom it asks; "" is the user who connected.
        database: the identity of its database; "" where it does not say.
    """

    node: str
    cluster: str
    epoch: int
    end_user: str = ""
    database: str = ""

    def settings(self) -> dict[str, str]:
        """The settings that say this."""
        said = {NODE: self.node, CLUSTER: self.cluster, EPOCH: str(self.epoch)}
        more = {DATABASE: self.database, END_USER: self.end_user}
        return said | {name: value for name, value in more.items() if value}


def read_peer(settings: Mapping[str, str]) -> Peer | None:
    """The node that a connection's settings name; None: its client is no node.

    Args:
        settings: by name in small letters; those of others are passed over.

    Raises:
        InvalidParameterValue: one is missing, or the epoch is no number.
    """
    said = {name: settings[name] for name in PEER_SETTINGS if name in settings}
    if not said:
        return None
    missing = [name for name in (NODE, CLUSTER, EPOCH) if not said.get(name)]
    if missing:
        raise InvalidParameterValue(f"a node that connects says {', '.join(missing)} as well")
    epoch = said[EPOCH]
    if re.fullmatch(r"\d{1,18}", epoch, re.ASCII) is None:
        raise InvalidParameterValue(f'setting "{EPOCH}" wants a whole number, not "{epoch}"')
    return Peer(said[NODE], said[CLUSTER], int(epoch), said.get(END_USER, ""), said.get(DATABASE, ""))


def older_epoch(node: str, epoch: int, ours: int) -> SerializationFailure:
    """The error for a node that connects with an older placement; `epoch_told` reads it."""
    return SerializationFailure(
        f'node "{node}" comes with epoch {epoch}, which is over',
        detail=f"Here the placement of epoch {ours} is in force.",
        hint="Give that node the newer cluster.toml: `ducktail cluster apply`.",
    )


def epoch_told(detail: str | None) -> int | None:
    """The epoch that a peer's 40001 names in its DETAIL; None where it is about something else."""
    found = _OURS.search(detail or "")
    return None if found is None else int(found[1])
