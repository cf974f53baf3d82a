"""A family of experts on this node: it claims a part, has it trained, publishes it, and keeps others' files.

Three tasks run side by side: claiming a part by what is read in the DHT (claims.py), training it (pursuit.py), and
keeping files, also those of others (keeping.py). Experts exchange nothing while they are trained. What must survive a
crash is on disk (memory.py).
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
from shoal.node.experts.keeping import Keeping
from shoal.node.experts.library import Library
from shoal.node.experts.memory import Memory, known_files
from shoal.node.experts.parts import SEED, common, experts_of, last_round, named, words
from shoal.node.experts.pursuit import Made, Pursuit
from shoal.node.experts.view import View
from shoal.node.manifest.manifest import Introduction
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.shortages import in_words, is_temporary
from shoal.protocol.messages.directory import ExpertCard, PartEntry
from shoal.protocol.net.system.tasks import Tasks

if TYPE_CHECKING:
    from shoal.node.experts.needs import Ground
    from shoal.node.training.checkpoint.read import Checkpoint

# -- what is written of each part --------------------------------------------------------------------------


AGAIN = 2.0  # seconds until a writing that nobody took is tried again
HOLDERS = 4  # of one file that say so, beside its author and who trains the part


@dataclass(slots=True)
class Told:
    """What we have written about a part."""

    entry: PartEntry | None = None
    next_at: float = 0.0

    def is_due(self, now: float, entry: PartEntry | None) -> bool:
        """Whether that is missing, old or wrong. That training goes on is no reason: the next renewal says it."""
        if entry is None:
            return self.entry is not None
        return now >= self.next_at or self.entry is None or _substance(entry) != _substance(self.entry)

    def wrote(self, now: float, entry: PartEntry | None, held: bool) -> None:
        """`held`: at least one server has it."""
        self.entry = entry
        pause = RENEW_EVERY if entry is not None and not entry.term else RENEW
        self.next_at = now + (pause if held else AGAIN)


def _substance(entry: PartEntry) -> tuple[object, ...]:
    return entry.addresses, entry.term, entry.run, entry.card, entry.answers


TURN = 1.0  # seconds between two looks at what is due
ALONE = 5.0  # seconds without anybody to ask, and we are alone
AVOIDED = 600.0  # seconds for which a part is not taken that we could not train
LAST_NOTE = 2.0  # seconds for which the end waits for what must be on record
TRIES = 3  # at training a part, and we give it up

log = logging.getLogger("shoal.experts")


class Family:
    """One family. `ground` is what it needs of the node."""

    def __init__(self, found: Introduction, trains: bool, ground: Ground) -> None:
        self.manifest, self.author, self.signature = found.manifest, found.author, found.signature
        self.id, self.trains = found.manifest.run_id, trains
        self.me: PeerId = ground.identity.peer
        self.signer = ground.identity.signer(self.id)
        self.experts = experts_of(self.manifest)
        names = [part.name for part in self.experts.parts]
        self.view = View(self.manifest, self.author, names, self.signer)
        lasts = {part.name: last_round(self.manifest, part) for part in self.experts.parts}
        self.claims = Claims(self.id, self.me, lasts)
        self.library: Library = ground.library
        self._memory = Memory(ground.home.run_folder(self.id.hex()))
        self._common = common(self.manifest)
        self.keeping = Keeping(self.id, self.me, lasts, self._common, self.view, ground.library, self._memory)
        of_node = (ground.runs, ground.library, self.view, ground.home, self.me)
        self.pursuit = Pursuit(self.manifest, *of_node, self.keeping.held, self._remember)
        self._ground, self.home = ground, ground.home.root
        self._board = Board(self.manifest, ground.discovery, ground.network)
        self.obstacles: dict[str, str] = {}  # why something is not done yet
        self._told: dict[str, Told] = {}
        self._avoided: dict[str, float] = {}  # until when
        self._failures = 0
        self._read_at = self.looked_at = 0.0
        self._is_fresh = False  # our claim: it is not written yet
        self._stirred, self._noting = asyncio.Event(), asyncio.Lock()
        self.failure = ""
        self._tasks = Tasks(self._failed)

    # -- life -------------------------------------------------------------------------------------------------

    def start(self, seed: Checkpoint | None) -> None:
        """Take part; `seed` is what the experts begin with, if we found the family from it."""
        self._born = asyncio.get_running_loop().time()
        self._tasks.spawn(self._live(seed))

    async def close(self, for_good: bool = False) -> None:
        """Our claims are withdrawn, and nothing is done any more; `for_good`: and the part's run is left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_NOTE), self._noting:  # what must be on record is
                pass
        await self._tasks.close()
        await self._board.withdraw()
        if for_good:
            await self.pursuit.leave()
            await self.keeping.forget()

    async def _live(self, seed: Checkpoint | None) -> None:
        while not await self._try(partial(self._begin, seed), "begin", is_temporary):
            await self._pause()
        async with asyncio.TaskGroup() as group:
            for duty in (self._claim, self._train, self._keep):
                group.create_task(self._again_and_again(duty))

    async def _begin(self, seed: Checkpoint | None) -> None:
        await self._recall()
        if seed is not None and SEED not in self.keeping.held:
            await self._publish_seed(seed)
        if self.author == self.me:
            self._publish_made()

    async def _again_and_again(self, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            if not self._ground.runs.paused:
                await self._try(duty, duty.__name__, lambda error: isinstance(error, ShoalError) or is_temporary(error))
            await self._pause()

    async def _try(
        self, duty: Callable[[], Awaitable[None]], name: str, may_go_better: Callable[[Exception], bool]
    ) -> bool:
        """Whether it is done; what `may_go_better` another time is an obstacle until then, all else is raised."""
        try:
            await duty()
        except Exception as error:
            if not may_go_better(error):
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
                await self._stirred.wait()
        self._stirred.clear()

    async def _recall(self) -> None:
        """What an earlier life has left: our part, and our files."""
        await self.library.tidy(partial(known_files, self._ground.home.runs))
        training, cards = await RECORDS.run(self._memory.load)
        await self.keeping.recall(cards)
        if training is not None and training.part in self.claims.lasts:
            card = self.keeping.held.get(training.part)
            self.claims.mine = Claim(self.me, training.part, training.term, card.round if card else 0)
            self.pursuit.part, self.pursuit.run = training.part, training.run

    async def _publish_seed(self, seed: Checkpoint) -> None:
        from shoal.node.experts.seeds import write_seed

        made = await self.library.make(partial(write_seed, seed=seed))
        self._hold(make_card(self.id, SEED, made, 0, 0, seed.about.samples, None, self.signer))

    def _publish_made(self) -> None:
        """The files that we have made when we founded the family."""
        for name, file, tokens in named(self.manifest):
            if name not in self.keeping.held:
                if (made := self.library.held(file)) is None:
                    raise LocalError(f"{self.manifest.name}: {words(name, 0)} has been lost: found the family again")
                self._hold(make_card(self.id, name, made, 0, 0, tokens, None, self.signer))

    # -- claiming ---------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        now = self._now()
        if now >= self._read_at and (not self._board.is_alone or now >= self._born + ALONE):
            await self._look()
        await self._tell()
        await self._board.be_present(len(self.view.live(now)) + 1)

    async def _look(self) -> None:
        """Read what all say, and decide."""
        listed = await self._board.read()
        now = self.looked_at = self._now()
        self._read_at = now + (LOOK * random.uniform(0.9, 1.1) if listed is not None else READ_AGAIN)
        if listed is None:
            return
        for error in self.view.take_in(now, (each for each in listed if each.peer != self.me)):
            warn(log, "peer-blamed", f"{error}; what it says of {self.manifest.name} counts for nothing")
        for peer, addresses in self.view.addresses().items():
            if found := self._ground.discovery.worth_dialling(addresses):
                self._ground.network.remember(peer, found)
        if self.trains:
            self._decide(now)
        if self.claims.mine is None and self.trains and (free := self.view.next_free(now)) is not None:
            self._read_at = min(self._read_at, free)

    def _decide(self, now: float) -> None:
        self._rank()
        before, avoided = self.claims.mine, [part for part, until in self._avoided.items() if until > now]
        for decision in self.claims.decide(self.view.sight(now), avoided):
            if isinstance(decision, Yield) and before is not None:
                log.info("the part %s of %s is %s's", before.part, self.manifest.name, decision.to)
        if before != self.claims.mine:
            self._is_fresh, self._failures = self.claims.mine is not None, 0
            self._remember()

    def _rank(self) -> None:
        """Others see by our entry how far the file is that we have, whoever has made it."""
        if (mine := self.claims.mine) is not None and (card := self.keeping.held.get(mine.part)) is not None:
            self.claims.published(card.part, card.round)

    async def _tell(self) -> None:
        """Write what is due of our entries; a fresh claim is read back a moment later."""
        now, addresses, puts = self._now(), self._board.addresses(), []
        for part in (*self.claims.lasts, *self._common):
            entry = self._entry(part, addresses)
            told = self._told.setdefault(part, Told())
            if told.is_due(now, entry):
                puts.append(self._write(part, told, entry))
        await asyncio.gather(*puts)
        if puts and self._is_fresh:
            self._is_fresh, self._read_at = False, self._now() + SETTLE

    def _entry(self, part: str, addresses: tuple[str, ...]) -> PartEntry | None:
        """What we have to say of a part: that we train it, have its file, or answer for it; None: nothing."""
        card, mine, answers = self.keeping.held.get(part), self.claims.mine, self.answered(part)
        if mine is not None and mine.part == part:
            run = self.pursuit.open_run if self.pursuit.part == part else None
            if run is None:
                return PartEntry(addresses, mine.term, None, 0, None, card, answers)
            return PartEntry(addresses, mine.term, run.id, run.committed.current.round, run.loss, card, answers)
        if card is None and answers is None:
            return None
        if answers is not None or card is None or self.is_told(card) or len(self.view.tellers(card)) < HOLDERS:
            return PartEntry(addresses, 0, None, 0, None, card, answers)
        return None

    async def _write(self, part: str, told: Told, entry: PartEntry | None) -> None:
        told.wrote(self._now(), entry, await self._board.write(part, entry))

    def stir(self, looks: bool = False) -> None:
        """Something may be due; `looks`: also to read what all say."""
        self._read_at = 0.0 if looks else self._read_at
        self._stirred.set()

    def answered(self, part: str) -> Digest | None:
        """The newest file of a part for which a process here answers."""
        return next((card.file for card in self.view.cards(part) if self._ground.answers(card.file)), None)

    def is_told(self, card: ExpertCard) -> bool:
        """Whether it is for us to say that we have a file: it is ours, or we have said so."""
        told = self._told.get(card.part)
        is_told = told is not None and told.entry is not None and told.entry.card == card
        return is_told or card.author == self.me

    # -- training ---------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        if self.pursuit.part and (self.claims.mine is None or self.claims.mine.part != self.pursuit.part):
            await self.pursuit.leave()
        mine = self.claims.mine
        if mine is None or not self.claims.is_confirmed or (part := self.experts.part(mine.part)) is None:
            return
        try:
            made = await self.pursuit.go_on(part)
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

    async def _publish(self, made: Made) -> None:
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
        await self.keeping.look(self._now(), mine, self.pursuit.obtain, self._hold)

    def _hold(self, card: ExpertCard) -> None:
        self.keeping.hold(card, self._tasks)
        self._stirred.set()

    # -- read side --------------------------------------------------------------------------------------------

    @property
    def pace(self) -> tuple[int, float]:
        """For who asks what the family is: there are no rounds of it."""
        return 0, 0.0

    def others(self) -> dict[PeerId, tuple[str, ...]]:
        """The other members that have written lately, and where they are."""
        live, known = self.view.live(self._now()), self.view.addresses()
        return {peer: known[peer] for peer in live if peer in known}

    # -- inside -----------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """Our own mistake, or a damaged record: nothing more is done, and `status` says so."""
        known = next((each for each in _all(error) if isinstance(each, ShoalError)), None)
        self.failure = str(known) if known is not None else f"{type(error).__name__}: {error}"
        log.error("the family %s has failed on this node: %s", self.manifest.name, self.failure, exc_info=error)

    def _remember(self) -> asyncio.Task[None]:
        """Have our part, and its run, on record; whoever must not go on before waits for the task."""
        self._stirred.set()
        return self._tasks.spawn(self._note())

    async def _note(self) -> None:
        async with self._noting:
            mine = self.claims.mine
            is_run = mine is not None and self.pursuit.part == mine.part
            run = self.pursuit.run if is_run else ""
            await write_with_retries(partial(self._memory.trains, mine, run), self._complain)
        self.obstacles.pop("note", None)

    def _complain(self, error: Exception) -> None:
        if "note" not in self.obstacles:
            warn(log, "family-obstacle", f"{self.manifest.name}: {error}; trying again")
        self.obstacles["note"] = str(error)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _all(error: BaseException) -> list[BaseException]:
    """An error, or those in a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return [each for inner in error.exceptions for each in _all(inner)]
    return [error]
