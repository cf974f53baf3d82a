"""Tells a node's fault (node/base/fault_injection.py) how far this node has come in the round that the fault is for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from shoal.node.base.fault_injection import FaultTrigger, Moment
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Mean
from shoal.protocol.messages.log import Vote
from shoal.protocol.messages.replicas import Chunk


class FaultWatch:
    """Watches the payloads and the votes of one run."""

    def __init__(self, me: PeerId, trigger: FaultTrigger) -> None:
        self._me = me
        self._trigger = trigger
        self._round = 0  # the last one that we have contributed to
        self._role = ""  # ours when its first contribution left, the one that the fault is about if we had it
        self._moved = defaultdict[Moment, set[Hashable]](set)
        self._decided = -1  # the last round that we have seen decided
        self._proposed_then = False  # whether we were the proposer when we saw it: who takes over later is spared

    def sent(self, to: PeerId, message: Message, rounds: Rounds, is_proposer: bool) -> None:
        """A payload was written to the network."""
        self._look(rounds, is_proposer)
        match message:
            case Contribution():
                self._begin(message.round, rounds, is_proposer)
                if (exchange := self._watched(message.round, rounds)) is not None:
                    total = sum(owner != self._me for owner in exchange.owners())
                    self._move("scatter", exchange, message.chunk, total)
            case Mean():
                exchange = self._watched(message.round, rounds)
                if exchange is not None and exchange.owns_any():
                    total = exchange.owners().count(self._me) * (len(exchange.roster) - 1)
                    self._move("gather", exchange, (message.chunk, to), total)

    def received(self, message: Message, rounds: Rounds, is_proposer: bool) -> None:
        """A message has arrived, and was taken."""
        self._look(rounds, is_proposer)
        if rounds.phase == "applying":  # the others have decided, and our vote is not needed
            self._trigger.decides(self._round, self._role)
        if isinstance(message, Mean):
            exchange = self._watched(message.round, rounds)
            if exchange is not None and not exchange.owns_any():
                self._move("gather", exchange, message.chunk, len(exchange.owners()))

    def leaves(self, message: Message, rounds: Rounds) -> None:
        """A message is about to leave."""
        if isinstance(message, Vote) and rounds.phase in ("deciding", "applying"):
            self._trigger.decides(self._round, self._role)

    def exchanged(self, message: Chunk, chunks: int) -> None:
        """A payload was written to the partner of a replica, who is to get so many."""
        if self._round != message.round:
            self._round = message.round
            self._moved.clear()
        self._moved["scatter"].add(message.chunk)
        self._trigger.moved(message.round, len(self._moved["scatter"]), chunks, "any")

    def _look(self, rounds: Rounds, is_proposer: bool) -> None:
        if self._decided != rounds.state.round:
            self._decided, self._proposed_then = rounds.state.round, is_proposer

    def _begin(self, round: int, rounds: Rounds, is_proposer: bool) -> None:
        if self._round == round or rounds.round is None:
            return
        self._round = round
        self._moved.clear()
        work = "owner" if rounds.round.exchange.owns_any() else "contributor"
        proposes = self._proposed_then and is_proposer
        self._role = "proposer" if proposes and self._trigger.fault.role == "proposer" else work

    def _watched(self, round: int, rounds: Rounds) -> Exchange | None:
        """The exchange of that round, if it is under way and we have begun to contribute."""
        exchange = rounds.round.exchange if rounds.round is not None else None
        return exchange if exchange is not None and exchange.round == round == self._round else None

    def _move(self, when: Moment, exchange: Exchange, what: Hashable, total: int) -> None:
        self._moved[when].add(what)
        self._trigger.moved(exchange.round, len(self._moved[when]), total, self._role, when)
