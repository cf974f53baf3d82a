"""A family of experts on this node: claims a part, has it trained, publishes its files, and keeps files of others.

Three tasks run concurrently: claiming a part by what is read in the DHT (claims.py), training it (part_training.py),
and keeping files (keeping.py). Experts exchange nothing while they are trained. What must survive a crash is on disk
(records.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shoal.dht.directory import RENEW_EVERY
from shoal.node.base.disk import write_with_retries
from shoal.node.base.logs import warn
from shoal.node.base.pools import RECORDS
from shoal.node.experts.board import AGAIN as READ_AGAIN
from shoal.node.experts.board import Board
from shoal.node.experts.card import make_card
from shoal.node.experts.claims import LOOK, RENEW, SETTLE, Claim, Claims, Yield
from shoal.node.experts.keeping import KeptFiles
from shoal.node.experts.library import Library
from shoal.node.experts.part_training import NewFile, PartTraining
from shoal.node.experts.parts import SEED, common, experts_of, last_round, named, words
from shoal.node.experts.records import FamilyRecords, known_files
from shoal.node.experts.view import View
from shoal.node.manifest.manifest import Introduction
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.messages.directory import ExpertCard, PartEntry
from shoal.protocol.messages.log import Register
from shoal.protocol.net.system.tasks import Tasks

if TYPE_CHECKING:
    from shoal.node.experts.needs import NodeServices
    from shoal.node.training.checkpoint.read import Checkpoint

# -- what is written of each part --------------------------------------------------------------------------


AGAIN = 2.0  # seconds until an entry that no server took is written again
HOLDERS = 4  # members that announce one file, beside its author and the peer that trains the part


@dataclass(slots=True)
class WrittenEntry:
    """Our last entry about a part, and when to renew it."""

    entry: PartEntry | None = None
    next_at: float = 0.0

    def is_due(self, now: float, entry: PartEntry | None) -> bool:
        """Whether `entry` must be written. Progress of training alone is no reason: a renewal will include it."""
        if entry is None:
            return self.entry is not None
        return now >= self.next_at or self.entry is None or _lasting_fields(entry) != _lasting_fields(self.entry)

    def wrote(self, now: float, entry: PartEntry | None, held: bool) -> None:
        """Note a written entry; `held`: whether a server has taken it."""
        self.entry = entry
        pause = RENEW_EVERY if entry is not None and not entry.term else RENEW
        self.next_at = now + (pause if held else AGAIN)


def _lasting_fields(entry: PartEntry) -> tuple[object, ...]:
    return entry.addresses, entry.term, entry.run, entry.card, entry.answers


TURN = 1.0  # seconds between two turns of each task
ALONE = 5.0  # seconds after the start until a node without contacts takes itself to be alone
AVOIDED = 600.0  # seconds for which a part that we could not train is not taken
LAST_NOTE = 2.0  # seconds that `close` waits for records to be written
TRIES = 3  # failures at training a part until it is given up

log = logging.getLogger("shoal.experts")


class Family:
    """One family. `services` is what it needs of the node."""

    def __init__(self, found: Introduction, trains: bool, services: NodeServices) -> None:
        self.manifest, self.genesis, self.author = found.manifest, found.genesis, found.genesis.author
        self.id, self.trains = found.run, trains
        self.me: PeerId = services.identity.peer
        self.signer = services.identity.signer(self.id)
        self.experts = experts_of(self.manifest)
        names = [part.name for part in self.experts.parts]
        self.view = View(self.manifest, self.genesis, names, self.signer)
        lasts = {part.name: last_round(self.manifest, part) for part in self.experts.parts}
        self.claims = Claims(self.id, self.me, lasts)
        self.library: Library = services.library
        self._records = FamilyRecords(services.home.run_folder(self.id.hex()))
        self._common = common(self.manifest)
        self.files = KeptFiles(self.id, self.me, lasts, self._common, self.view, services.library, self._records)
        of_node = (services.runs, services.library, self.view, services.home, self.me)
        self.training = PartTraining(self.manifest, self.id, *of_node, self.files.held, self._remember)
        self._services, self.home = services, services.home.root
        self._board = Board(self.manifest, self.id, services.discovery, services.network)
        self.register: Register | None = None  # as of a run: a family has no log
        self.obstacles: dict[str, str] = {}  # by task, why it does not succeed yet
        self._written: dict[str, WrittenEntry] = {}
        self._avoided: dict[str, float] = {}  # by part, until when it is not taken
        self._failures = 0
        self._read_at = self.looked_at = 0.0
        self._is_fresh = False  # whether our claim is new, and not written yet
        self._woken, self._noting = asyncio.Event(), asyncio.Lock()
        self.failure = ""
        self._tasks = Tasks(self._failed)

    # -- life -------------------------------------------------------------------------------------------------

    def start(self, seed: Checkpoint | None) -> None:
        """Begin; `seed` is the checkpoint that the experts begin with, if we found the family from one."""
        self._born = asyncio.get_running_loop().time()
        self._tasks.spawn(self._live(seed))

    async def close(self, for_good: bool = False) -> None:
        """Withdraw our claims, and stop; `for_good`: also leave the part's run, and remove the files."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_NOTE), self._noting:  # what must be on record is
                pass
        await self._tasks.close()
        await self._board.withdraw()
        if for_good:
            await self.training.leave()
            await self.files.forget()

    async def _live(self, seed: Checkpoint | None) -> None:
        while not await self._try(partial(self._begin, seed), "begin", is_temporary):
            await self._pause()
        async with asyncio.TaskGroup() as group:
            for duty in (self._claim, self._train, self._keep):
                group.create_task(self._repeat(duty))

    async def _begin(self, seed: Checkpoint | None) -> None:
        await self._recall()
        if seed is not None and SEED not in self.files.held:
            await self._publish_seed(seed)
        if self.author == self.me:
            self._publish_made()

    async def _repeat(self, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            if not self._services.runs.paused:
                await self._try(duty, duty.__name__, lambda error: isinstance(error, ShoalError) or is_temporary(error))
            await self._pause()

    async def _try(
        self, duty: Callable[[], Awaitable[None]], name: str, is_transient: Callable[[Exception], bool]
    ) -> bool:
        """Whether the duty succeeded. An error that `is_transient` is noted as an obstacle, any other is raised."""
        try:
            await duty()
        except Exception as error:
            if not is_transient(error):
                raise
            words = in_words(error)
            if self.obstacles.get(name) != words:
                warn(log, "family-obstacle", f"{self.manifest.name}: {words}; trying again")
            self.obstacles[name] = words
            return False
        self.obstacles.pop(name, None)
        return True

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN):
                await self._woken.wait()
        self._woken.clear()

    async def _recall(self) -> None:
        """Load what was recorded before a restart: our part, and our files."""
        await self.library.tidy(partial(known_files, self._services.home.runs))
        recorded, cards = await RECORDS.run(self._records.load)
        await self.files.recall(cards)
        if recorded is not None and recorded.part in self.claims.lasts:
            card = self.files.held.get(recorded.part)
            self.claims.mine = Claim(self.me, recorded.part, recorded.term, card.round if card else 0)
            self.training.part, self.training.run = recorded.part, recorded.run

    async def _publish_seed(self, seed: Checkpoint) -> None:
        from shoal.node.experts.founding import write_seed

        made = await self.library.make(partial(write_seed, seed=seed))
        self._hold(make_card(self.id, SEED, made, 0, 0, seed.about.samples, None, self.signer))

    def _publish_made(self) -> None:
        """Publish the files that were made when we founded the family."""
        for name, file, tokens in named(self.manifest):
            if name not in self.files.held:
                if (made := self.library.held(file)) is None:
                    raise LocalError(
                        f"{self.manifest.name}: {words(name, 0)} has been lost: found the family again",
                        code="expert-file-lost",
                    )
                self._hold(make_card(self.id, name, made, 0, 0, tokens, None, self.signer))

    # -- claiming ---------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        now = self._now()
        if now >= self._read_at and (not self._board.is_alone or now >= self._born + ALONE):
            await self._look()
        await self._write_due()
        await self._board.be_present(len(self.view.live(now)) + 1)

    async def _look(self) -> None:
        """Read all entries, and decide on our part."""
        listed = await self._board.read()
        now = self.looked_at = self._now()
        self._read_at = now + (LOOK * random.uniform(0.9, 1.1) if listed is not None else READ_AGAIN)
        if listed is None:
            return
        for error in self.view.take_in(now, (each for each in listed if each.peer != self.me)):
            warn(log, "peer-blamed", f"{error}; what it says of {self.manifest.name} counts for nothing")
        for peer, addresses in self.view.addresses().items():
            if found := self._services.discovery.worth_dialling(addresses):
                self._services.network.remember(peer, found)
        if self.trains:
            self._decide(now)
        if self.claims.mine is None and self.trains and (free := self.view.next_free(now)) is not None:
            self._read_at = min(self._read_at, free)

    def _decide(self, now: float) -> None:
        self._rank()
        before, avoided = self.claims.mine, [part for part, until in self._avoided.items() if until > now]
        for decision in self.claims.decide(self.view.reading(now), avoided):
            if isinstance(decision, Yield) and before is not None:
                log.info("the part %s of %s is %s's", before.part, self.manifest.name, decision.to)
        if before != self.claims.mine:
            self._is_fresh, self._failures = self.claims.mine is not None, 0
            self._remember()

    def _rank(self) -> None:
        """Rank our claim by the file that we have, as others see it in our entry, whoever made the file."""
        if (mine := self.claims.mine) is not None and (card := self.files.held.get(mine.part)) is not None:
            self.claims.published(card.part, card.round)

    async def _write_due(self) -> None:
        """Write the entries that are due; a new claim is read back soon after."""
        now, addresses, puts = self._now(), self._board.addresses(), []
        for part in (*self.claims.lasts, *self._common):
            entry = self._entry(part, addresses)
            written = self._written.setdefault(part, WrittenEntry())
            if written.is_due(now, entry):
                puts.append(self._write(part, written, entry))
        await asyncio.gather(*puts)
        if puts and self._is_fresh:
            self._is_fresh, self._read_at = False, self._now() + SETTLE

    def _entry(self, part: str, addresses: tuple[str, ...]) -> PartEntry | None:
        """Our entry about a part: that we train it, have its file, or answer for it; None if none of these."""
        card, mine, answers = self.files.held.get(part), self.claims.mine, self.answered_file(part)
        if mine is not None and mine.part == part:
            run = self.training.open_run if self.training.part == part else None
            if run is None:
                return PartEntry(addresses, mine.term, None, 0, None, card, answers)
            return PartEntry(addresses, mine.term, run.id, run.committed.current.round, run.loss, card, answers)
        if card is None and answers is None:
            return None
        if answers is not None or card is None or self.is_announced(card) or len(self.view.announcers(card)) < HOLDERS:
            return PartEntry(addresses, 0, None, 0, None, card, answers)
        return None

    async def _write(self, part: str, written: WrittenEntry, entry: PartEntry | None) -> None:
        written.wrote(self._now(), entry, await self._board.write(part, entry))

    def wake(self, reads: bool = False) -> None:
        """Something may be due; `reads`: all entries are to be read, too."""
        self._read_at = 0.0 if reads else self._read_at
        self._woken.set()

    def answered_file(self, part: str) -> Digest | None:
        """The newest file of a part that a process here answers for."""
        return next((card.file for card in self.view.cards(part) if self._services.answers(card.file)), None)

    def is_announced(self, card: ExpertCard) -> bool:
        """Whether we announce that we have the card's file: it is ours, or our last entry says so."""
        written = self._written.get(card.part)
        is_written = written is not None and written.entry is not None and written.entry.card == card
        return is_written or card.author == self.me

    # -- training ---------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        if self.training.part and (self.claims.mine is None or self.claims.mine.part != self.training.part):
            await self.training.leave()
        mine = self.claims.mine
        if mine is None or not self.claims.is_confirmed or (part := self.experts.part(mine.part)) is None:
            return
        try:
            made = await self.training.go_on(part)
        except LocalError as error:
            self._failures += not is_temporary(error)
            if self._failures >= TRIES:
                self._give_up(mine.part, error)
            raise
        self._failures = 0
        if made is not None:
            await self._publish(made)

    def _give_up(self, part: str, error: LocalError) -> None:
        self._failures, self._avoided[part] = 0, self._now() + AVOIDED
        if self.claims.give_up(part):
            self._remember()
        warn(log, "part-given-up", f"{self.manifest.name}: this node cannot train the part {part}: {error}")

    async def _publish(self, made: NewFile) -> None:
        record, part = made.record, made.part
        steps = record.round * self.manifest.method.inner_steps
        card = make_card(self.id, part.name, made.file, record.round, steps, record.samples, record.loss, self.signer)
        self._hold(card)
        self.claims.published(card.part, card.round)
        self._read_at = 0.0 if card.round >= self.claims.lasts[part.name] else self._read_at
        log.info("published round %d of the part %s of %s", card.round, part.name, self.manifest.name)

    # -- keeping ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        mine = self.claims.mine.part if self.claims.mine is not None else ""
        await self.files.look(self._now(), mine, self.training.obtain, self._hold)

    def _hold(self, card: ExpertCard) -> None:
        self.files.hold(card, self._tasks)
        self._woken.set()

    # -- read side --------------------------------------------------------------------------------------------

    @property
    def pace(self) -> tuple[int, float]:
        """As of a run, for peers that ask: a family has no rounds."""
        return 0, 0.0

    def others(self) -> dict[PeerId, tuple[str, ...]]:
        """The other members that have written lately, and their addresses."""
        live, known = self.view.live(self._now()), self.view.addresses()
        return {peer: known[peer] for peer in live if peer in known}

    # -- inside -----------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """A bug, or a damaged record: the family stops on this node, and `status` says so."""
        known = next((each for each in _all(error) if isinstance(each, ShoalError)), None)
        self.failure = str(known) if known is not None else f"{type(error).__name__}: {error}"
        log.error(
            "the family %s has failed on this node: %s",
            self.manifest.name,
            self.failure,
            exc_info=error,
            extra={"code": "family-failed"},
        )

    def _remember(self) -> asyncio.Task[None]:
        """Record our part and its run; a caller that must not go on before waits for the task."""
        self._woken.set()
        return self._tasks.spawn(self._note())

    async def _note(self) -> None:
        async with self._noting:
            mine = self.claims.mine
            is_run = mine is not None and self.training.part == mine.part
            run = self.training.run if is_run else ""
            await write_with_retries(partial(self._records.put_training, mine, run), self._complain)
        self.obstacles.pop("note", None)

    def _complain(self, error: Exception) -> None:
        if "note" not in self.obstacles:
            warn(log, "family-obstacle", f"{self.manifest.name}: {error}; trying again")
        self.obstacles["note"] = str(error)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _all(error: BaseException) -> list[BaseException]:
    """An error, or all errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        return [each for inner in error.exceptions for each in _all(inner)]
    return [error]
