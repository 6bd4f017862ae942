"""A statement about partitions that are on their way to this node waits for them, for a while.

What has not come then is an error, never an empty answer (`shares.check_owned`).
Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from ...engine.catalog.streams import Stream
from ...engine.waiting import Wait, Waiting
from ..cluster.routing import names
from ..session_state.context import Context
from ..text.classified import Classified

# How long a statement waits: small logs have come by then.
ARRIVE_S = 5.0


def missing(session: Context, classified: Classified, node: object) -> list[Stream]:
    """The topics that a statement names and of which this node lacks partitions that it owns."""
    database = session.database
    placement = database.cluster.placement
    if not placement.epoch:
        return []
    found = [session.names.find_stream(name.parts) for name in names(session, classified, node)]
    return [one for one in found if one is not None and database.holds.missing(placement, one)]


def arriving(session: Context, classified: Classified, node: object) -> Waiting[None]:
    """Wait until they have come, or one try to bring them has failed, or for ARRIVE_S.

    Raises:
        SerializationFailure: of another node's share: meanwhile there is another placement.
    """
    streams = missing(session, classified, node)
    if not streams:
        return
    database, clock = session.database, session.database.clock
    ends_s = clock.monotonic_s() + ARRIVE_S
    for stream in streams:
        while database.holds.missing(database.cluster.placement, stream):
            left_s = ends_s - clock.monotonic_s()
            changed = database.arrivals.changed()
            if left_s <= 0 or not database.holds.missing(database.cluster.placement, stream):
                break
            database.arrivals.hurry()
            if (yield Wait(changed, left_s)) and database.arrivals.stuck(stream.stream_id):
                break
    if session.part is not None:
        # Who has sent the share takes it for one of the partitions that were this node's then.
        session.part.check(database.cluster.placement.epoch, database.cluster.placement.local.name)
