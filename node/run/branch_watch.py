"""What last happened to a run whose members had gone on in parts: for its log, its row and the page."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.node.base.kept import names
from shoal.node.base.logs import warn
from shoal.node.run.records import CommitRecord
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.log import Register

log = logging.getLogger("shoal.run")


class BranchWatch:
    """Of one run, which is called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.words = ""  # on the last event, a sentence without the run's name; empty: there was none since the start
        self.at: float | None = None  # when that was, in seconds since 1970

    def founded(self, before: Register, register: Register) -> None:
        """The run goes on without a quorum of the voters of `before`."""
        left = [voter for voter in before.voters if voter not in register.voters]
        without = f", without {names(left)}" if left else ""
        self._note("branch-founded", f"it goes on with {_members(register)}{without}")

    def left(self, register: Register) -> None:
        """This node goes on with another part of the run."""
        words = f"it had gone on in two parts: this node joins that of {_members(register)}, which has more to show"
        self._note("branch-left", words)

    def dropped(self, records: Sequence[CommitRecord], folder: Path | None) -> None:
        """What counts no more since then: rounds, and the checkpoints that lie in `folder` now."""
        if records:
            tokens = sum(record.round_samples for record in records)
            self.words += f"; {tokens:,} tokens of {len(records):,} rounds count no more"
        if folder is not None:
            self.words += f"; the checkpoints of that part are in {folder}"

    def joined_by(self, peers: Sequence[PeerId]) -> None:
        """These are members again, without whom it had gone on."""
        them = "are members again, without whom" if len(peers) > 1 else "is a member again, without whom"
        self._note(
            "branch-joined", f"{names(peers)} {them} it had gone on; what they have decided meanwhile counts no more"
        )

    def is_free_of_link(self) -> None:
        """The branch that the run's link names is left."""
        warn(
            log,
            "link-of-left-branch",
            f"{self._name} has left the branch of its log on which the link was made: this node goes on without "
            "checking that the log has the entry which the link names",
        )

    def _note(self, code: str, words: str) -> None:
        self.words, self.at = words, time.time()
        warn(log, code, f"{self._name}: {words}")


def _members(register: Register) -> str:
    members = [member.peer for member in register.members]
    return f"{len(members)} members ({names(members)})" if len(members) > 1 else f"one member ({names(members)})"
