"""The continuous copies of an open database: their threads, and the checkpoints between them.

While a database has copies, DuckDB makes no checkpoint by itself (`DuckdbFile.connect`): this module asks
for each of them, when the log has reached a size, and lets the copies take the log to its end before. A
copy that is behind delays a checkpoint until the log has reached another size, and no longer. Each
generation is restored to a temporary file and checked by a process of its own, of low priority. Source:
docs/design/replication.md, "Checkpoints", "Verification".
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..clock import Clock
from ..errors import DatabaseReplaced, DucktailError, LockNotAvailable
from ..settings import Settings
from .copier import FAILING, FOLLOWING, Copier, CopyRules, CopySource, CopyStatus
from .database_blocks import DatabaseBlocks
from .generation_writer import DatabaseIdentity, began_us_of
from .objects import VERIFIED, read_head, write_object
from .synchronous_copies import SynchronousCopies
from .targets import DirectoryTarget

logger = logging.getLogger(__name__)

MIB = 1 << 20
# A checkpoint is due at this size of the log, and with copies that are behind at half of wal_bytes_max.
CHECKPOINT_BYTES = 64 * MIB
LOOK_S = 0.2
# A checkpoint that open write transactions prevent is tried this often, under the writer lock and without it,
# and again after a pause, which grows.
ATTEMPTS_LOCKED, ATTEMPTS, ATTEMPT_S = 3, 50, 0.02
PAUSE_S, PAUSE_S_MAX = 1.0, 10.0
# Before a checkpoint the copies are waited for this long at most, and then, by captured writers, this long.
CATCH_UP_S, CATCH_UP_LOCKED_S = 1.0, 0.2
CLOSE_S = 10.0
# An opening with synchronous copies waits for them this long.
FIRST_S = 5.0
# Verification: the pause between looks, and the longest run of one.
VERIFY_LOOK_S, VERIFY_S_MAX = 10.0, 6 * 3600.0
REPORT_CHARS_MAX = 2000
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of the last verification of a copy.

    Args:
        result: "ok", or the damage.
    """

    at_us: int
    generation: str
    ok: bool
    result: str


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The state of one copy at this moment."""

    target: str
    status: CopyStatus
    lag_bytes: int
    lag_transactions: int | None
    lag_s: float | None
    verification: Verification | None


class ContinuousCopies:
    """The copies of one open database.

    Args:
        path: the database file.
        log_path: DuckDB's log beside it.
        identity: returns the database's identity.
        checkpoint: asks DuckDB for a checkpoint; returns False if open transactions prevent it.
        locked: the writer lock, as a context.
        committed: returns the number and the last LSN of the last committed transaction.
        replaced: called when a target has the fence of a promoted standby.
    """

    def __init__(
        self,
        path: str,
        log_path: str,
        settings: Settings,
        clock: Clock,
        identity: Callable[[], DatabaseIdentity],
        checkpoint: Callable[[], bool],
        locked: Callable[[], AbstractContextManager[None]],
        committed: Callable[[], tuple[int, int]],
        replaced: Callable[[DatabaseReplaced], None],
    ) -> None:
        self._path = path
        self._log_path = log_path
        self._clock = clock
        self._checkpoint = checkpoint
        self._locked = locked
        self._committed = committed
        self._verify_us = settings.copy_verify_interval_ms * 1000
        self._due_bytes = min(CHECKPOINT_BYTES, settings.wal_bytes_max // 4)
        self._bound_bytes = settings.wal_bytes_max // 2
        rules = CopyRules(
            settings.copy_interval_ms / 1000,
            settings.copy_generation_ms * 1000,
            settings.copy_generations,
            settings.copy_retention_ms * 1000,
            synchronous=settings.synchronous_copies > 0,
        )
        self._blocks = DatabaseBlocks(path)
        source = CopySource(self._blocks, log_path, identity, committed, clock, replaced)
        self.copiers = [Copier(source, DirectoryTarget(Path(place)), rules) for place in settings.copy_to]
        self.synchronous: SynchronousCopies | None = None
        if rules.synchronous:
            timeout_s = settings.synchronous_copies_timeout_ms / 1000
            self.synchronous = SynchronousCopies(self.copiers, settings.synchronous_copies, timeout_s, clock)
        self._verifications: dict[str, Verification | None] = {}
        self._slow: dict[Copier, int | None] = {}  # and the time until which each had copied
        # The writer lock has one owner for all checkpoints.
        self._checkpointing = threading.Lock()
        self._stop = threading.Event()
        self._checking: subprocess.Popen[str] | None = None
        self._threads = [
            threading.Thread(target=self._look_at_log, name="ducktail-copy-checkpoints", daemon=True),
            threading.Thread(target=self._verify, name="ducktail-copy-verification", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for copier in self.copiers:
            copier.start()
        for thread in self._threads:
            thread.start()
        # What was committed before is readable from the start.
        if self.synchronous is not None and not self.synchronous.confirm_within(FIRST_S):
            logger.warning("the copies do not have everything yet that is readable")

    def close(self) -> None:
        """Copy what is there, within a bounded time, and end the threads."""
        self._stop.set()
        checking = self._checking
        if checking is not None:
            checking.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        for copier in self.copiers:
            copier.close(0.0 if copier.status.state == FAILING else CLOSE_S)
        if self.synchronous is not None:
            self.synchronous.close()

    def release(self) -> None:
        """Close the file, after DuckDB has closed it."""
        self._blocks.close()

    def reports(self) -> list[CopyReport]:
        """The state of each copy."""
        now_us, (last_txid, _) = self._clock.now_us(), self._committed()
        return [self._report(copier, now_us, last_txid) for copier in self.copiers]

    def _report(self, copier: Copier, now_us: int, last_txid: int) -> CopyReport:
        status, lag_bytes = copier.status, copier.lag_bytes()
        is_behind = lag_bytes > 0 or status.state != FOLLOWING
        since_us = status.copied_us
        lag_s = None if since_us is None else max(0.0, (now_us - since_us) / SECOND_US) if is_behind else 0.0
        return CopyReport(
            str(copier.target),
            status,
            lag_bytes,
            None if status.txid is None else max(0, last_txid - status.txid),
            lag_s,
            self._verifications.get(str(copier.target)),
        )

    # Checkpoints.

    @contextmanager
    def before_checkpoint(self) -> Iterator[None]:
        """Context in which a checkpoint is asked for: the copies that follow have the log to its end.

        Captured writers wait meanwhile. Other commits that come between, and refer to blocks, are copied with
        the checkpoint.

        Raises:
            LockNotAvailable: a transaction holds the writer lock.
        """
        self._catch_up(CATCH_UP_S)
        with self._checkpointing, self._locked():
            self._catch_up(CATCH_UP_LOCKED_S)
            yield

    def _catch_up(self, within_s: float) -> None:
        """Let the copies that follow take the log to its end, within a bounded time.

        A copy that was too slow is not waited for again until it has made progress.
        """
        ends_s = self._clock.monotonic_s() + within_s
        while (left_s := ends_s - self._clock.monotonic_s()) > 0:
            behind = [
                one
                for one in self.copiers
                if one.status.state == FOLLOWING
                and one.lag_bytes()
                and self._slow.get(one, -1) != one.status.copied_us
            ]
            if not behind:
                return
            if not behind[0].catch_up(left_s):
                self._slow[behind[0]] = behind[0].status.copied_us

    def _look_at_log(self) -> None:
        pause_s = LOOK_S
        while not self._stop.wait(pause_s):
            made = False
            try:
                if not self._is_due(self._due_bytes):
                    pause_s = LOOK_S
                    continue
                made = self._make_checkpoint()
            except LockNotAvailable:
                pass
            except DucktailError as error:
                logger.error("a checkpoint has failed: %s", error)
            except Exception:  # The next look tries again; without checkpoints the log would grow for ever.
                if not self._stop.is_set():
                    logger.exception("looking after the log")
            pause_s = LOOK_S if made else min(PAUSE_S_MAX, max(PAUSE_S, 2 * pause_s))

    def _is_due(self, due_bytes: int) -> bool:
        try:
            size = os.path.getsize(self._log_path)
        except OSError:
            return False
        if size < due_bytes:
            return False
        behind = any(
            copier.status.state != FOLLOWING or copier.lag_bytes() > self._due_bytes // 2
            for copier in self.copiers
        )
        return size >= self._bound_bytes or not behind

    def _make_checkpoint(self) -> bool:
        """Make a checkpoint; False if open write transactions prevent it."""
        with self.before_checkpoint():
            # Few attempts, because captured writers wait.
            if self._attempt(ATTEMPTS_LOCKED):
                return True
        # Writers of other tables rarely leave a gap: it is looked for longer where the log is large.
        return self._is_due(self._bound_bytes) and self._attempt(ATTEMPTS)

    def _attempt(self, count: int) -> bool:
        for _ in range(count):
            if self._checkpoint():
                return True
            if self._stop.wait(ATTEMPT_S):
                return False
        return False

    # Verification.

    def _temporary(self) -> tuple[Path, str]:
        """The directory of the database, and the beginning of the names of temporary directories in it."""
        path = Path(self._path).absolute()
        return path.parent, f"{path.name}.check-"

    def _verify(self) -> None:
        around, prefix = self._temporary()
        for left in around.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left, ignore_errors=True)  # A killed server could not delete it.
        for copier in self.copiers:
            with suppress(OSError, DucktailError):
                self._read_verification(copier)
        while not self._stop.wait(VERIFY_LOOK_S if self._verify_us > VERIFY_LOOK_S * SECOND_US else LOOK_S):
            for copier in self.copiers:
                try:
                    if self._must_verify(copier):
                        self._verify_copy(copier)
                except OSError as error:
                    logger.warning("the copy in %s could not be verified: %s", copier.target, error)

    def _must_verify(self, copier: Copier) -> bool:
        status = copier.status
        if (
            not self._verify_us
            or status.state != FOLLOWING
            or status.generation is None
            or self._stop.is_set()
        ):
            return False
        last = self._verifications.get(str(copier.target))
        since_us = began_us_of(status.generation) if last is None else last.at_us
        return self._clock.now_us() - since_us >= self._verify_us

    def _verify_copy(self, copier: Copier) -> None:
        """Restore a copy in another process, and store the result in the target."""
        generation = copier.status.generation
        assert generation is not None
        around, prefix = self._temporary()
        with tempfile.TemporaryDirectory(prefix=prefix, dir=around) as place:
            nice = ["nice", "-n", "19"] if shutil.which("nice") else []
            command = [
                *nice,
                sys.executable,
                "-m",
                "ducktail",
                "check",
                str(copier.target),
                "--temporary",
                place,
            ]
            self._checking = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
            )
            try:
                output, _ = self._checking.communicate(timeout=VERIFY_S_MAX)
            except subprocess.TimeoutExpired:
                self._checking.kill()
                output, _ = self._checking.communicate()
                output += f"damage: the verification took longer than {VERIFY_S_MAX:g} s"
            code, self._checking = self._checking.returncode, None
        if self._stop.is_set():
            return  # It was ended, and says nothing.
        wrong = [line for line in output.splitlines() if line.startswith(("damage: ", "ducktail: "))]
        text = "ok" if code == 0 else (" ".join(wrong) or f"exit status {code}: {output.strip()[-500:]}")
        done = Verification(self._clock.now_us(), generation, code == 0, text[:REPORT_CHARS_MAX])
        self._verifications[str(copier.target)] = done
        if not done.ok:
            logger.error("the copy in %s is damaged: %s", copier.target, done.result)
        facts = {
            "kind": VERIFIED,
            "generation": generation,
            "number": -1,
            "at_us": done.at_us,
            "ok": done.ok,
            "result": done.result,
        }
        write_object(copier.target, VERIFIED, facts, (), 0, replace=True)

    def _read_verification(self, copier: Copier) -> None:
        facts = read_head(copier.target, VERIFIED).facts
        self._verifications[str(copier.target)] = Verification(
            facts["at_us"], facts["generation"], facts["ok"], facts["result"]
        )
