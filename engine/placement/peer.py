"""The identity of a connecting node, in the options of its connection.

    ducktail.node, ducktail.cluster, ducktail.epoch    its name, its cluster, the epoch of its placement
    ducktail.database                                  the identity of its database
    ducktail.end_user                                  the user for whom it asks; default: the connecting user

The other node reports the first four as parameters, and the digest of its placement as `ducktail.digest`.

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
    """A connected node.

    Args:
        end_user: the user for whom it asks; "" for the connecting user.
        database: the identity of its database; "" if not reported.
    """

    node: str
    cluster: str
    epoch: int
    end_user: str = ""
    database: str = ""

    def settings(self) -> dict[str, str]:
        """The settings that transmit these values."""
        said = {NODE: self.node, CLUSTER: self.cluster, EPOCH: str(self.epoch)}
        more = {DATABASE: self.database, END_USER: self.end_user}
        return said | {name: value for name, value in more.items() if value}


def read_peer(settings: Mapping[str, str]) -> Peer | None:
    """The node named in a connection's settings; None if its client is not a node.

    Args:
        settings: values by name in lower case; other settings are ignored.

    Raises:
        InvalidParameterValue: a setting is missing, or the epoch is not a number.
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
    """The epoch in the DETAIL of a peer's 40001; None for another error."""
    found = _OURS.search(detail or "")
    return None if found is None else int(found[1])
