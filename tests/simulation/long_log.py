"""A log of many results, decided by three voters in one process, with the journals that a node would keep.

The voters are as they ship, and so is what a node does with their journals (node/run/log_store.py). The network is a
list, nothing is forced to the disk, and there are no vectors: what is left is the cost of the decisions.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.node.run.log_store import LONGEST, LogStore
from shoal.protocol.base.effects import Effect, Persist, Send, Tell
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.wire import Message
from shoal.protocol.log.core import Core, EntryDecided
from shoal.protocol.log.keeper import Keeper, ResultProposed
from shoal.protocol.log.register import Rules, body_of, first_state
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.member.facts import PART
from shoal.protocol.member.past import Kept
from shoal.protocol.messages.log import Register, Result, Seat, Shortcut
from tests.simulation.log_worlds import Endless, register_of
from tests.simulation.signing import FakeSigner

VOTERS = 3
TOKENS = 1024  # of each member in a step
CHECKPOINT = 50  # steps between two snapshots of the state
WRITING = 500  # steps while one is written: a slow disk, and more than a peer has entries of in memory


def founding() -> Register:
    """Three members who vote and take part in the rounds, and nothing decided yet."""
    register = register_of(VOTERS, VOTERS)
    seats = tuple(Seat(peer, 1) for peer in register.voters)
    return replace(register, parts=(replace(first_state(PART, 0, digest("seeded")), roster=seats),))


class EverybodyIsHere:
    """Membership without a fault."""

    def __init__(self, me: PeerId) -> None:
        self._others = [peer for peer in founding().voters if peer != me]

    def alive(self) -> list[PeerId]:
        return self._others

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self._others


@dataclass
class Voter:
    """One voter, its journal, and the longest that this has been."""

    keeper: Keeper
    store: LogStore
    longest: int = 0
    compactions: int = 0
    beginning: Shortcut | None = None  # what it is to begin with once the state is written
    written_at: int = 0  # round


def rules_for(peer: PeerId) -> Rules:
    """What `peer` applies."""
    return Rules(Crash(), FakeSigner(peer))


def opened(peer: PeerId, folder: Path) -> tuple[Voter, Kept]:
    """A voter with what is on its disk."""
    folder.mkdir(exist_ok=True)
    store, rules, first = LogStore(folder), rules_for(peer), founding()
    kept = store.open(first, rules, is_founder=True)
    if not kept.entries and kept.way == START:  # the lives of the three are known from the beginning
        life = next(member.life for member in first.members if member.peer == peer)
        store.put("vote", replace(kept.votes, life=life))
        kept = replace(kept, votes=replace(kept.votes, life=life))
    core = Core.resume(peer, kept.register, kept.entries, kept.votes, rules)
    return Voter(
        Keeper(core, EverybodyIsHere(peer), first, Shortcuts(first, kept.way, kept.first), Endless()), store
    ), kept


@dataclass
class LongLog:
    """Steps decided one after the other, as in a run of `ddp`."""

    folder: Path
    voters: dict[PeerId, Voter] = field(default_factory=dict)
    messages: deque[tuple[PeerId, PeerId, Message]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for peer in founding().voters:
            self.voters[peer], _ = opened(peer, self.folder / peer)
        for peer, voter in self.voters.items():
            self.carry_out(peer, voter.keeper.start())
        self.deliver()

    @property
    def steps(self) -> int:
        """Decided by all."""
        return min(voter.keeper.register.parts[PART].round for voter in self.voters.values())

    def step(self) -> None:
        """The proposer has the next result decided, and all hear of it."""
        peer, voter = next((peer, voter) for peer, voter in self.voters.items() if voter.keeper.proposer == peer)
        part = voter.keeper.register.parts[PART]
        round, voters = part.round + 1, len(part.roster)
        table, root = (digest(kind, round.to_bytes(8, "little")) for kind in ("table", "root"))
        weights, counted = (TOKENS,) * voters, bytes([(1 << voters) - 1])
        body = Result(PART, round, part.result, root, table, counted, weights, part.roster)
        self.carry_out(peer, voter.keeper.want(body))
        self.deliver()

    def deliver(self) -> None:
        while self.messages:
            sender, to, message = self.messages.popleft()
            self.carry_out(to, self.voters[to].keeper.receive(sender, message))  # type: ignore[arg-type]

    def carry_out(self, peer: PeerId, effects: list[Effect]) -> None:
        voter = self.voters[peer]
        for effect in effects:
            match effect:
                case Persist(name=name, record=record):
                    voter.store.put(name, record)
                case Send(to=to, message=message):
                    self.messages.append((peer, to, message))
                case Tell(event=ResultProposed(entry=entry)):
                    self.carry_out(peer, voter.keeper.answer(entry, True))
                case Tell(event=EntryDecided(entry=entry)):
                    body = body_of(entry.body)
                    if isinstance(body, Result):
                        self.checkpoint(peer, body.round)

    def checkpoint(self, peer: PeerId, round: int) -> None:
        """As node/run/agreed_run.py has it written beside the next rounds, and then makes the journal shorter."""
        voter = self.voters[peer]
        voter.longest = max(voter.longest, voter.store.size)
        if voter.beginning is None and round % CHECKPOINT == 0 and voter.store.size > LONGEST:
            voter.beginning, voter.written_at = voter.keeper.beginning_for(PART, round), round + WRITING
        if voter.beginning is not None and round >= voter.written_at:
            effects, voter.beginning = voter.keeper.shorten(voter.beginning), None
            voter.compactions += len(effects)
            self.carry_out(peer, effects)


def memory() -> int:
    """Bytes of this process that are in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
