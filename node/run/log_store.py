"""The run's log on this node's disk: the journal, and the means of the rounds since the last snapshot of the state.

    runs/<id>/log/journal    entries and votes, each forced to disk before anything that follows from it leaves
                  means/     the means of the last rounds (means_store.py): those that we have made are written at once,
                             so that they outlive this process, and all others once the result is applied
                  kept       is there while this node is stopped, if nothing can be decided without it
                  left       is there until the states of a branch that was left are set aside (saving.py)
                  switch     is there while the log is about to go on on another branch: how its journal begins
                  ran        empty; when it was changed last is when this node was last seen to run
                  state/     a snapshot of the state as a checkpoint, if one was needed beside those of the run
                  download   is there while the state is being downloaded: the chunks that have come

All methods block. LocalError says what cannot be read or written; its cause, whether another try may succeed.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.node.base.atomic import force, replace_file
from shoal.node.base.home import KEPT
from shoal.node.base.kept import KeptVote
from shoal.node.base.logs import warn
from shoal.node.base.refusals import CODES
from shoal.node.run.means_store import MeansStore
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.shortages import in_words
from shoal.protocol.base.wire import Message
from shoal.protocol.log.journal import begins_with, begun_at, first_register, framed, is_readable, read, shortened
from shoal.protocol.log.register import Rules, voters_root
from shoal.protocol.member.facts import FOUNDING_LIFE
from shoal.protocol.member.past import Kept
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.log import Decided, Register, Shortcut, Switch, VoteFile

FOLDER, JOURNAL, STATE, DOWNLOAD = "log", "journal", "state", "download"
MEANS, RESULT = "means", "result"  # names of records; the first one is also that of their folder
SHORTEN = "shorten"  # name of a shortcut to what is here already
LEFT = "left"  # name of the file that says that the states here are of a branch that was left
SWITCH = "switch"  # name of the file that becomes it, if the journal begins as it says: then a branch was left
RAN = "ran"  # name of the file that says when this node ran
AWAY = 60.0  # seconds without us, from which on others may have gone on so
LONGEST = 4 << 20  # bytes of a journal that is not made shorter

log = logging.getLogger("shoal.run")


class LogStore:
    """One run's."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / FOLDER
        self._votes: VoteFile | None = None  # the last one written
        self.size = 0  # bytes of the journal
        self._places: dict[int, int] = {}  # where in it each entry begins
        self.had_kept_vote = False  # when it was opened: see `mark_kept`
        self.means = MeansStore(self.folder / MEANS)

    def first(self) -> Register | None:
        """The register that the journal begins with: that of the run's beginning, or where it was made shorter."""
        with self._or_error("read"):
            path = self.folder / JOURNAL
            return first_register(path.read_bytes()) if path.exists() else None

    def open(self, founding: Register, rules: Rules, is_founder: bool) -> Kept:
        """What is here, once it is fit to be gone on with.

        Without a vote file that can be trusted this is another life: `is_founder`, its first one, that all know of.
        """
        with self._or_error("read"):
            self.folder.mkdir(exist_ok=True)
            self._end_switch()
            self.had_kept_vote = (self.folder / KEPT).exists()
            (self.folder / KEPT).unlink(missing_ok=True)
            path = self.folder / JOURNAL
            content = self._journal()
            was_away = self._was_away(is_new=not content)
            journal = read(content, rules)
            register, votes = journal.register or founding, journal.votes
            kept = content[: journal.length]
            if votes is None:
                if journal.is_damaged:
                    warn(log, "record-damaged", f"{path} is damaged: this node goes on without the vote that it had")
                life = FOUNDING_LIFE if is_founder and not content else time.time_ns() // 1_000_000
                votes = VoteFile(life, voters_root(register), 0, 0, None, None)
                kept += (b"" if journal.register is not None else framed(founding)) + framed(votes)
            if kept != content:
                replace_file(path, [kept])
            force(self.folder)  # an earlier process may have had no time to, after it had replaced the journal
            self._votes, self.size = votes, len(kept)
            self._places = dict(journal.places)
            self.means.open()
        return Kept(journal.first or founding, journal.way, register, journal.entries, votes, was_away)

    def put(self, name: str, record: Message) -> None:
        """Append a record: on return it is written, and if it is of "log" or "vote" it is forced to disk, too.

        So are all means and tables (messages/averaging.py) of "means" and "result" by a table of "result". The log goes
        on from a shortcut of "log", which leads over entries that we have never had, and from a Switch on another
        branch: then all means are forgotten, and it is noted that the states that are here are of the branch before.
        With a shortcut of "shorten" the journal begins, and keeps the entries that follow it.
        """
        with self._or_error("write"):
            if name in (MEANS, RESULT):
                assert isinstance(record, Mean | Table)
                self.means.write(record)
                if name == RESULT and isinstance(record, Table):
                    self.means.force()
            elif isinstance(record, Switch):  # in this order: we may be killed
                replace_file(self.folder / SWITCH, [begins_with(framed(record.beginning))])
                self._begin_at(record.beginning, record.votes)
                self._forget_branch()
            elif isinstance(record, Shortcut):
                assert self._votes is not None
                if name != SHORTEN:
                    self._begin_at(record, self._votes)
                elif is_readable(record):  # else the journal stays as long as it is
                    self._shorten(record, self._votes)
            else:
                if isinstance(record, Decided):
                    self._places[record.entry.number] = self.size
                self._append_to_journal(framed(record))
                if isinstance(record, VoteFile):
                    self._votes = record

    def note_running(self) -> None:
        """We are here now. A disk that does not take that costs a start that looks for the others first."""
        now = time.time_ns()
        with suppress(OSError):  # it is made by `open` alone: a folder that was removed does not come back
            os.utime(self.folder / RAN, ns=(now, now))  # of our own clock: a network disk has another

    def mark_kept(self, vote: KeptVote) -> None:
        """We have stopped with our vote, without which the others cannot decide anything."""
        with self._or_error("write"):
            vote.write(self.folder / KEPT)

    def has_left(self) -> bool:
        """Whether the states that are here are of a branch that was left, so that they must be set aside.

        A switch in which an earlier process was killed is ended first.
        """
        with self._or_error("write"):
            self._end_switch()
            return (self.folder / LEFT).exists()

    def forget_means(self, round: int, spare: int = 0) -> None:
        """There is a snapshot of the state after `round`: means of earlier rounds are of no use here any more.

        Those of that round are, to others who have not applied it, and so are the `spare` bytes before them, but at
        most a fourth of the room that the disk has left.
        """
        with self._or_error("write"):
            most = shutil.disk_usage(self.folder).free // 4
            self.means.forget(round, min(spare, most), gives_back=most < spare)

    def forget(self) -> None:
        """We have left the run for good, or are about to begin with it anew."""
        with self._or_error("remove"):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    # -- inside -------------------------------------------------------------------------------------------------

    def _journal(self) -> bytes:
        """Its content; nothing if there is none."""
        path = self.folder / JOURNAL
        return path.read_bytes() if path.exists() else b""

    def _end_switch(self) -> None:
        """Do what is left to do of a switch of branches in which an earlier process was killed, or had not begun."""
        path = self.folder / SWITCH
        if not path.exists():
            return
        if path.read_bytes() == begins_with(self._journal()):
            force(self.folder)  # else a power cut might bring back the log of before, whose votes need the means
            self.means.open()
            self._forget_branch()
        else:  # the log has not left its branch
            path.unlink()

    def _forget_branch(self) -> None:
        """The log has left a branch: of no use are its means, nor its states, which are set aside later."""
        self.means.forget_all()
        os.replace(self.folder / SWITCH, self.folder / LEFT)
        force(self.folder)

    def _begin_at(self, beginning: Shortcut, votes: VoteFile) -> None:
        self._replace_journal(begun_at(beginning, votes), {})
        self._votes = votes

    def _shorten(self, beginning: Shortcut, votes: VoteFile) -> None:
        if beginning.register.number not in self._places:  # the journal begins there already, or later
            force(self.folder)  # perhaps all that an earlier try has not done
            return
        path = self.folder / JOURNAL
        before = path.stat().st_ino
        try:
            content, places = shortened(path.read_bytes(), self._places, beginning, votes)
            self._replace_journal(content, places)
        except OSError as error:
            if path.stat().st_ino != before:  # it is the new one, which may not survive a crash
                self._places, self.size = places, len(content)
                raise
            warn(log, "record-not-shortened", f"the log in {self.folder} stays as long as it is: {in_words(error)}")

    def _replace_journal(self, content: bytes, places: dict[int, int]) -> None:
        replace_file(self.folder / JOURNAL, [content])
        self._places, self.size = places, len(content)

    def _was_away(self, is_new: bool) -> bool:
        """Whether we may not have run for AWAY; also if nobody knows, as where the clock went back.

        That is changed by `note_running` alone: who is stopped before it has looked for the others still has to.
        """
        path = self.folder / RAN
        if is_new or not path.exists():
            path.touch()
            ran = time.time_ns() if is_new else 0
            os.utime(path, ns=(ran, ran))
        return not 0 <= time.time_ns() - path.stat().st_mtime_ns <= AWAY * 1e9

    def _append_to_journal(self, record: bytes) -> None:
        with (self.folder / JOURNAL).open("ab", buffering=0) as file:
            try:
                if file.write(record) != len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(file.fileno())
            except OSError:
                file.truncate(self.size)
                raise
        self.size += len(record)

    @contextmanager
    def _or_error(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LocalError(
                f"cannot {doing} {self.folder}: {in_words(error)}; a member must not forget what is there: mend that, "
                "then leave the run and join it again",
                code=CODES.get(error.errno or 0, "record-unwritable"),
            ) from error
