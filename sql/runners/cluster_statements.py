"""INSTALL PLACEMENT. Source: docs/cluster.md, "Apply"."""

from __future__ import annotations

from ...engine.cluster.joining import install
from ...engine.waiting import Wait, Waiting
from ..arguments import Values, text
from ..context import Context
from ..language.statements_other import InstallPlacement
from ..results.results import Result
from ..running import text_rows
from .show_statements import INSTALLED_COLUMNS


def install_placement(session: Context, asked: InstallPlacement, parameters: Values) -> Waiting[Result]:
    """INSTALL PLACEMENT 'text'."""
    session.access.require_superuser("install a placement")
    session.block.refuse_within("INSTALL PLACEMENT")
    done = yield from install(session.database, text(asked.text, parameters))
    if session.learner is not None and session.database.cluster.lacks:
        yield Wait(learning := session.learner.learn())
        for told in learning.result().told():
            session.notices.add(told, severity="WARNING", sqlstate="01000")
    node = session.database.placement.local.name
    return text_rows(INSTALLED_COLUMNS, [[node, done.epoch, done.moves, done.new]], "INSTALL PLACEMENT")
