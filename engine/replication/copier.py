"""The thread that copies a database to one target, continuously.

Each pass copies the whole commits that DuckDB's log has gained. After a checkpoint it first copies the rest
of the old log, from a descriptor that still reads it, and then the blocks that the checkpoint changed. An
error of the target never reaches a writer: the pass is repeated, at growing intervals, and continues where
the objects in the target end.

With synchronous copies a pass begins as soon as a commit waits for it. Between two passes that are due, it
puts the commits into a tail, whose objects are deleted when the chain has them: otherwise each commit would
be an object for as long as the generation is kept. Source: docs/design/replication.md, "The copier",
"Synchronous copies".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..clock import Clock
from ..errors import DatabaseReplaced, DataCorrupted, DucktailError
from .database_blocks import CheckpointHeader, DatabaseBlocks, Sums
from .fences import refuse_replaced
from .generation_writer import (
    DatabaseIdentity,
    GenerationWriter,
    OtherLog,
    began_us_of,
    generation_names,
    head_name,
    is_whole,
)
from .log_tail import LogTail
from .targets import DirectoryTarget

logger = logging.getLogger(__name__)

# An object of blocks has at most this many, and one of the log about this many bytes, or one transaction.
BATCH_BLOCKS = 32
SEGMENT_BYTES = 8 << 20
# The interval after a failed pass, doubled with each further one; the longest if commits wait for the copy.
RETRY_S, RETRY_S_MAX, RETRY_SYNCHRONOUS_S_MAX = 1.0, 60.0, 1.0
# The interval after a pass that a checkpoint has made incomplete, if commits wait for the copy.
INCOMPLETE_S = 0.005
# The commits in tails have at most this many bytes: one object of the log then has them all.
TAILS_BYTES_MAX = SEGMENT_BYTES // 2
SECOND_US = 1_000_000
# The head is written again after this time without commits, and tells until when there were none.
HEAD_US = 10 * SECOND_US
# A new generation that could not be begun is tried again after this time; the present one continues.
POSTPONED_US = 3600 * SECOND_US
STARTING, COPYING, FOLLOWING, FAILING = "starting", "copying", "following", "failing"


@dataclass(frozen=True, slots=True)
class CopySource:
    """The database that is copied.

    Args:
        log_path: DuckDB's log beside the file.
        identity: returns the database's identity.
        committed: returns the number and the last LSN of the last committed transaction.
        replaced: called when a target has the fence of a promoted standby.
    """

    blocks: DatabaseBlocks
    log_path: str
    identity: Callable[[], DatabaseIdentity]
    committed: Callable[[], tuple[int, int]]
    clock: Clock
    replaced: Callable[[DatabaseReplaced], None]


@dataclass(frozen=True, slots=True)
class CopyRules:
    """The settings of copies, in microseconds where they are times; `docs/settings.md` describes them.

    Args:
        synchronous: True if commits wait for copies.
    """

    interval_s: float
    generation_us: int
    generations: int
    retention_us: int
    synchronous: bool


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The state of a copy.

    Args:
        state: STARTING, COPYING (blocks of the file), FOLLOWING (the log) or FAILING.
        error: the error of the last failed pass; None while passes succeed.
        retry_us: the time of the next attempt.
        errors: the number of failed passes.
        txid, lsn: all transactions up to this one are copied; None before the first pass.
        copied_us: the time of the commits up to which all are copied.
        copied_bytes: the bytes that this process has put into the target.
    """

    state: str = STARTING
    generation: str | None = None
    generations: int = 0
    iteration: int | None = None
    offset: int = 0
    txid: int | None = None
    lsn: int | None = None
    copied_us: int | None = None
    copied_bytes: int = 0
    error: str | None = None
    error_us: int | None = None
    retry_us: int | None = None
    errors: int = 0


class _Stopped(Exception):
    """The end of a pass because the thread must end."""


class Copier:
    """The copy of one database in one target.

    Attributes:
        status: the state after the last step; replaced, never changed.
        confirmed: the largest ticket of `confirm` whose commits are durable in the target.
        on_confirmed: called by the thread when `confirmed` has grown.
    """

    def __init__(self, source: CopySource, target: DirectoryTarget, rules: CopyRules) -> None:
        self._source = source
        self.target = target
        self._rules = rules
        self.status = CopyStatus()
        self._chain: GenerationWriter | None = None
        self._tail: LogTail | None = None
        self._written_before = 0  # by the generations before the present one
        self._begin_anew = False
        self._next_generation_us = 0  # not before this time
        self._stopping = False
        self._wake = threading.Condition()
        self._wanted = self._done = 0  # passes that were asked for, and the last that has ended
        # The last ticket; that of the present pass; and the chain and log that commits continue while the
        # blocks of a new generation are copied.
        self._asked = self._asking = self.confirmed = 0
        self._previous: tuple[GenerationWriter, LogTail] | None = None
        self.on_confirmed: Callable[[], None] = lambda: None
        self._due_s = 0.0  # a pass that is not only for a tail is due at this time
        self._thread = threading.Thread(target=self._run, name="ducktail-copy", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Copy what is there and end the thread, after a bounded time."""
        self.catch_up(timeout_s)
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._close_tail()
        self._drop_previous()

    def catch_up(self, timeout_s: float) -> bool:
        """Run a pass that begins now, and wait for its end; False if it fails or takes longer."""
        with self._wake:
            self._wanted += 1
            wanted = self._wanted
            self._wake.notify_all()
            ended = self._wake.wait_for(
                lambda: self._done >= wanted or not self._thread.is_alive(), timeout_s
            )
        return ended and self.status.error is None

    def confirm(self, ticket: int) -> None:
        """Ask for a pass that begins now: `confirmed` is `ticket` once all present commits are durable.

        Args:
            ticket: larger than that of any call before.
        """
        with self._wake:
            self._asked = ticket
            if self.status.error is None:
                self._wake.notify_all()

    def lag_bytes(self) -> int:
        """The bytes of the log that are not copied, with those of commits under way."""
        tail = self._tail
        try:
            if tail is not None:
                return max(0, tail.size() - self.status.offset)
            return os.path.getsize(self._source.log_path)
        except OSError:
            return 0  # There is no log, or a checkpoint has ended it this moment.

    def _run(self) -> None:
        pause_s = self._rules.interval_s
        while True:
            with self._wake:
                # Waiters of a failing target are not kept waiting for a target that they cannot help.
                self._wake.wait_for(self._is_wanted, pause_s)
                if self._stopping:
                    return
                wanted, self._asking = self._wanted, self._asked
                if self._done < wanted:
                    self._due_s = 0.0
            pause_s = self._look()
            with self._wake:
                self._done = max(self._done, wanted)
                self._wake.notify_all()

    def _is_wanted(self) -> bool:
        """True if a pass must not wait for its time; called with the condition held."""
        if self._stopping or self._done < self._wanted:
            return True
        return self._asking < self._asked and self.status.error is None

    def _look(self) -> float:
        """Run one pass; returns the time until the next one."""
        try:
            self._pass()
        except _Stopped:
            return 0.0
        except (OSError, DucktailError, OtherLog) as error:
            return self._failed(error)
        except Exception as error:  # A fault of one copy must end neither the server nor its other copies.
            logger.exception("copying to %s", self.target)
            return self._failed(error)
        if self.status.error is not None:
            logger.warning("copying to %s again", self.target)
        self.status = replace(self.status, state=FOLLOWING, error=None, retry_us=None)
        left_s = max(0.0, self._due_s - self._source.clock.monotonic_s())
        return left_s if self.confirmed == self._asking else min(left_s, INCOMPLETE_S)

    def _failed(self, error: Exception) -> float:
        now_us = self._source.clock.now_us()
        if isinstance(error, DatabaseReplaced):
            self._source.replaced(error)
        if self._chain is not None and self._chain.checkpoint is None:
            self._next_generation_us = now_us + POSTPONED_US
        # Whether the last object exists is unknown: the next pass reads the target.
        self._forget_chain()
        self._drop_previous()
        self._due_s = 0.0
        self._begin_anew = self._begin_anew or isinstance(error, FileExistsError | OtherLog)
        text = f"{error.message}: {error.detail}" if isinstance(error, DucktailError) else str(error)
        if self.status.error != text:
            logger.error("copying to %s fails: %s", self.target, text)
        last = self.status
        retry_s = RETRY_S
        if last.error is not None and last.retry_us is not None and last.error_us is not None:
            longest_s = RETRY_SYNCHRONOUS_S_MAX if self._rules.synchronous else RETRY_S_MAX
            retry_s = min(longest_s, 2 * (last.retry_us - last.error_us) / SECOND_US)
        self.status = replace(
            last,
            state=FAILING,
            error=text,
            error_us=now_us,
            retry_us=now_us + round(retry_s * SECOND_US),
            errors=last.errors + 1,
        )
        return retry_s

    def _forget_chain(self) -> None:
        if self._chain is not None:
            self._written_before += self._chain.bytes_written
            self._chain = None

    def _drop_previous(self) -> None:
        if self._previous is not None:
            chain, tail = self._previous
            self._previous = None
            self._written_before += chain.bytes_written
            tail.close()

    # A pass.

    def _pass(self) -> None:
        clock, chain = self._source.clock, self._chain
        now_us, now_s = clock.now_us(), clock.monotonic_s()
        if chain is not None and now_s < self._due_s and self._copy_tail(chain):
            return
        refuse_replaced(self.target, self._source.identity())
        if chain is None:
            chain = None if self._begin_anew else self._resumed()
        if chain is None or now_us >= max(
            chain.began_us + self._rules.generation_us, self._next_generation_us
        ):
            self._leave_chain()
            self._delete_unfinished()
            chain = GenerationWriter.begin(self.target, self._source.identity(), now_us)
            logger.info("copying to %s: generation %s begins", self.target, chain.name)
        self._chain = chain
        header = self._source.blocks.header()
        is_first = chain.checkpoint is None
        if chain.checkpoint != header.data:
            continues = self._finish_log(chain, header)
            self._close_tail()
            self.status = replace(self.status, state=COPYING)
            self._copy_checkpoint(chain, header, continues=continues)
        copied_us = self._copy_log(chain)
        if copied_us is not None and (chain.unheaded or copied_us - chain.headed_us >= HEAD_US):
            chain.put_head(copied_us)
        chain.delete_tails()
        if copied_us is not None:
            self._drop_previous()
        if is_first:
            self._begin_anew = False
            self._delete_old(chain)
        self._due_s = clock.monotonic_s() + self._rules.interval_s

    def _resumed(self) -> GenerationWriter | None:
        """The newest generation with a checkpoint, if it can be continued."""
        whole = [name for name in generation_names(self.target) if is_whole(self.target, name)]
        if not whole:
            return None
        try:
            chain = GenerationWriter.resume(self.target, whole[-1], self._source.identity())
            if chain is None:
                return None
            if chain.checkpoint == self._source.blocks.header().data and chain.offset:
                if self._tail is None:
                    self._tail = LogTail.open(self._source.log_path, chain.iteration)
                if self._tail is None:
                    raise OtherLog("the log that was copied is not there")
                chain.check_log(self._tail)
        except (DataCorrupted, OtherLog) as error:
            logger.warning("generation %s in %s is not continued: %s", whole[-1], self.target, error)
            return None
        if self._tail is not None:
            self._tail.offset = chain.offset
        self.status = replace(self.status, generations=len(whole))
        self._tell(chain)
        return chain

    def _finish_log(self, chain: GenerationWriter, header: CheckpointHeader) -> bool:
        """Copy the rest of the log before a checkpoint; True if the checkpoint continues it.

        Blocks to which its commits refer may be overwritten by now, so that such commits are not copied: the
        checkpoint contains them.
        """
        tail = self._tail
        if tail is None or chain.checkpoint is None:
            return False
        while True:
            part = tail.part(SEGMENT_BYTES, without_blocks=True)
            if part.commits:
                chain.put_log(tail, part, self._source.clock.now_us())
                self._tell(chain)
            if part.ended or not part.commits:
                return part.ended and header.iteration == chain.iteration + 1

    def _copy_checkpoint(self, chain: GenerationWriter, header: CheckpointHeader, *, continues: bool) -> None:
        """Copy the blocks of the checkpoint that is in force, and then its headers."""
        blocks = self._source.blocks
        while True:
            now_us = self._source.clock.now_us()
            sums = blocks.sums(header.block_count, header.block_bytes)
            if self._copy_changed(chain, header, sums):
                chain.put_checkpoint(header, sums, continues=continues, now_us=now_us)
                self._tell(chain)
                return
            # There is another checkpoint, and nobody has read the log between the two.
            header, continues = blocks.header(), False

    def _copy_changed(self, chain: GenerationWriter, header: CheckpointHeader, sums: Sums) -> bool:
        """Copy the blocks that differ from the copied ones; False if a checkpoint came between."""
        blocks = self._source.blocks
        changed = np.flatnonzero(sums != chain.known(len(sums))).tolist()
        for start in range(0, len(changed), BATCH_BLOCKS):
            found = list(blocks.read(changed[start : start + BATCH_BLOCKS], header.block_bytes))
            if blocks.header().data != header.data:
                return False
            if self._stopping:
                raise _Stopped
            if found:
                chain.put_blocks(found, header.block_bytes)
                self._tell(chain)
            self._follow_previous()
        return blocks.header().data == header.data

    def _copy_log(self, chain: GenerationWriter) -> int | None:
        """Copy the commits that the log has gained, with the blocks to which they refer.

        Returns:
            The time at which all commits before are copied; None if a checkpoint came between.
        """
        if self._tail is None:
            self._tail = LogTail.open(self._source.log_path, chain.iteration)
            if self._tail is not None:
                self._tail.offset = chain.offset
        tail, blocks, clock = self._tail, self._source.blocks, self._source.clock
        began_us, (txid, lsn) = clock.now_us(), self._source.committed()
        while tail is not None:
            if tail.size() < tail.offset:
                raise OtherLog("the log has become shorter")
            part = tail.part(SEGMENT_BYTES)
            if not part.commits:
                if part.ended:
                    return None  # A checkpoint is being made, and later commits are in another log.
                break
            if part.has_row_groups:
                header = blocks.header()
                count = blocks.all_count(header.block_bytes)
                same = header.data == chain.checkpoint
                if not same or not self._copy_changed(chain, header, blocks.sums(count, header.block_bytes)):
                    return None  # A checkpoint has been made: the next pass sees it.
            chain.put_log(tail, part, clock.now_us())
            self._tell(chain)
            if self._stopping:
                raise _Stopped
        if blocks.header().data != chain.checkpoint:
            return None
        self._have_copied(began_us, txid, lsn)
        return began_us

    def _have_copied(self, began_us: int, txid: int, lsn: int) -> None:
        """Note that the target has all commits up to a time, and of which transaction."""
        # Behind the last object: what is confirmed was put before a fence.
        refuse_replaced(self.target, self._source.identity())
        status = self.status
        txid, lsn = max(txid, status.txid or 0), max(lsn, status.lsn or 0)
        self.status = replace(status, copied_us=began_us, txid=txid, lsn=lsn)
        if self.confirmed < self._asking:
            self.confirmed = self._asking
            self.on_confirmed()

    # Commits that wait.

    def _copy_tail(self, chain: GenerationWriter) -> bool:
        """Copy the commits that the log has gained as a tail; False if they need more than that."""
        tail, clock = self._tail, self._source.clock
        if tail is None or tail.size() < chain.copied_end:
            return False
        began_us, (txid, lsn) = clock.now_us(), self._source.committed()
        part = tail.part(SEGMENT_BYTES, start=chain.copied_end)
        if part.ended or part.has_row_groups or part.end - chain.offset > TAILS_BYTES_MAX:
            return False
        if part.commits:
            chain.put_tail(tail, part, clock.now_us())
            self._tell(chain)
        if not self._source.blocks.is_at(chain.checkpoint):
            return False
        self._have_copied(began_us, txid, lsn)
        return True

    def _leave_chain(self) -> None:
        """Leave the chain for a new generation, and let waiting commits continue it meanwhile."""
        chain, tail = self._chain, self._tail
        self._chain = None
        if self._rules.synchronous and chain is not None and tail is not None:
            self._previous, self._tail = (chain, tail), None
            return
        self._chain = chain
        self._forget_chain()
        self._close_tail()

    def _follow_previous(self) -> None:
        """Copy commits to the generation before while the blocks of a new one are copied."""
        if self._previous is None:
            return
        chain, tail = self._previous
        with self._wake:
            self._asking = self._asked
        began_us, (txid, lsn) = self._source.clock.now_us(), self._source.committed()
        part = tail.part(SEGMENT_BYTES)
        if part.ended or part.has_row_groups or part.end - part.start >= SEGMENT_BYTES:
            self._drop_previous()  # They wait for the new one.
            return
        if part.commits:
            chain.put_log(tail, part, self._source.clock.now_us())
            chain.delete_tails()
        if self._source.blocks.is_at(chain.checkpoint):
            self._have_copied(began_us, txid, lsn)

    def _tell(self, chain: GenerationWriter) -> None:
        last = chain.last
        if last is not None:
            self.status = replace(self.status, txid=last.txid, lsn=last.last_lsn)
        self.status = replace(
            self.status,
            generation=chain.name,
            iteration=chain.iteration,
            offset=chain.copied_end,
            copied_bytes=self._written_before + chain.bytes_written,
        )

    def _close_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    # Retention.

    def _delete_unfinished(self) -> None:
        """Delete generations that have no checkpoint: a failure ended them."""
        for name in generation_names(self.target):
            if not is_whole(self.target, name):
                self._delete(name)

    def _delete_old(self, chain: GenerationWriter) -> None:
        """Delete the generations before a new one that are no longer kept."""
        before = [name for name in generation_names(self.target) if name < chain.name]
        oldest_us = self._source.clock.now_us() - self._rules.retention_us
        kept = 1
        for name, following in reversed(list(pairwise([*before, chain.name]))):
            if kept < self._rules.generations and began_us_of(following) >= oldest_us:
                kept += 1
            else:
                self._delete(name)
        self.status = replace(self.status, generations=kept)

    def _delete(self, name: str) -> None:
        # Without its head, what is left of a generation counts as nothing.
        self.target.delete(head_name(name))
        for one in reversed(self.target.names(name)):
            self.target.delete(one)
        self.target.delete_folder(name)
        logger.info("generation %s in %s is no longer kept", name, self.target)
