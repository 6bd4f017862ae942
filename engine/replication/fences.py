"""Fences: the objects in a target that tell a database that a standby was promoted in its place.

A promotion puts the fence of the incarnation after the copied one, under a name that must not exist, before
it takes the last objects from the target. A copier looks for that fence after it has put the commits that
wait for it, and before it confirms them. So a commit that was confirmed was put before the fence, and the
promoted standby has it. Of two standbys only one can put the fence. Source: docs/design/replication.md,
"Promotion".
"""

from __future__ import annotations

from ..errors import DatabaseReplaced, ObjectInUse
from .generation_writer import DatabaseIdentity
from .objects import read_head, write_object
from .targets import DirectoryTarget

FENCE = "fence"


def fence_name(incarnation: int) -> str:
    """The name of the fence with which an incarnation begins."""
    return f"{FENCE}-{incarnation:06d}"


def put_fence(target: DirectoryTarget, identity: DatabaseIdentity, promoted: str, now_us: int) -> None:
    """Put the fence behind an incarnation; repeated by the same promotion it does nothing.

    Args:
        promoted: the promotion's own random name.

    Raises:
        ObjectInUse: another standby was promoted.
        OSError: the target failed.
    """
    name = fence_name(identity.incarnation + 1)
    facts = {"kind": FENCE, "number": -1, "identity": identity.uuid, "promoted": promoted, "at_us": now_us}
    try:
        write_object(target, name, facts, (), 0)
    except FileExistsError:
        if read_head(target, name).facts["promoted"] != promoted:
            raise ObjectInUse(
                f'"{target}" has the fence of another promotion',
                detail=f"Another standby serves incarnation {identity.incarnation + 1} of this database.",
                hint="Delete this standby's files, and let it follow the other one.",
            ) from None


def refuse_replaced(target: DirectoryTarget, identity: DatabaseIdentity) -> None:
    """Refuse to go on with a database in whose place a standby was promoted.

    Raises:
        DatabaseReplaced: the target has the fence.
        OSError: the target failed.
    """
    name = fence_name(identity.incarnation + 1)
    try:
        facts = read_head(target, name).facts
    except FileNotFoundError:
        return
    if facts["identity"] == identity.uuid:
        raise DatabaseReplaced(
            "a standby was promoted in place of this database",
            detail=f'"{target}" has its fence: it is incarnation {identity.incarnation + 1}, and this is '
            f"{identity.incarnation}. Commits that the copy did not have are here only.",
            hint="Keep the file for its last commits, and let a new standby follow in its place.",
        )
