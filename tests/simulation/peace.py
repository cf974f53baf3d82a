"""After the last fault all members must commit together again, unless there is an exact reason why they cannot.

Rules: dead members are started again if the living cannot go on without them; members that left stay away. A run is
excused only for what no protocol could repair: the state, or bytes that may have been decided, died with their last
holder; members that left are needed for a quorum; too few are left, or none that trains.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Leave, PreparedValue
from tests.simulation.ledger import Ledger, Voters, holds_quorum
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer
from tests.simulation.world import World

PEACE = 120.0  # virtual seconds within which all must come together again
MORE_ROUNDS = 2  # that must commit in peace


@dataclass(frozen=True)
class Peace:
    """How a run went on after the last fault."""

    excuse: str = ""  # why the remaining members cannot go on
    took: float = 0.0  # virtual seconds until they had come together
    revived: int = 0  # members that had to be started again


def make_peace(world: World[Peer], oracle: Oracle) -> Peace:
    """End all faults; Violation unless all living members commit again, on the same state."""
    world.watchers.clear()
    world.network.heal()
    world.network.set_loss(None)
    for peer in world.living():
        world.resume(peer)
    dead = [peer for peer in world.disks if not world.is_alive(peer) and peer not in oracle.left]
    revived = dead if excuse(world, oracle) else []
    for peer in revived:
        world.start(peer)
    why = excuse(world, oracle)
    return Peace(why, 0.0 if why else _come_together(world, oracle), len(revived))


def _come_together(world: World[Peer], oracle: Oracle) -> float:
    goal = oracle.ledger.newest + MORE_ROUNDS
    try:
        return world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=PEACE)
    except Violation:
        raise
    except AssertionError:
        where = {peer: repr(world.node(peer).member.rounds) for peer in world.living()}
        raise Violation("Termination", f"round {goal} is not everywhere {PEACE} s after peace: {where}") from None


def excuse(world: World[Peer], oracle: Oracle) -> str:
    """Why the living members cannot go on; empty: Termination promises that they do."""
    nodes = {peer: world.node(peer) for peer in world.living()}
    return _Outlook(nodes, oracle.ledger).excuse()


class _Outlook:
    """What the living members can do about the open round."""

    def __init__(self, nodes: dict[PeerId, Peer], ledger: Ledger) -> None:
        self._nodes = nodes
        self._ledger = ledger
        is_known = any(_has(node, ledger.newest) for node in nodes.values())
        self._round = ledger.newest + 1 if is_known else ledger.newest
        self._able = [peer for peer in nodes if self._may_vote(peer)]
        self._leaves = self._known_leaves()

    def excuse(self) -> str:
        """The first reason that is found."""
        old, round = self._ledger.voters_after(self._round - 1), self._round
        assert old is not None
        if not any(_has(node, round - 1) for node in self._nodes.values()):
            return f"the state of round {round - 1} died with its last holder"
        value = self._to_adopt(old)
        electorates = [old] if value is None else [old, value.proposal.voters]
        for voters in electorates:
            if not holds_quorum(self._able, voters, list(self._leaves)):
                absent = ", ".join(self._absent(voters))
                return (
                    f"round {round} has no quorum without {absent}" if absent else f"no voter of round {round} is left"
                )
        if value is not None and (lost := self._lost_chunks(value)):
            return f"round {round} may be decided, and its chunks {lost} died with their last holder"
        return self._too_few()

    def _may_vote(self, peer: PeerId) -> bool:
        record = self._ledger.on_disk(peer)
        return record is None or (record.round <= self._round and record.left < self._round)

    def _known_leaves(self) -> dict[PeerId, Leave]:
        """LEAVEs that have reached a living member."""
        all_rounds = [node.member.rounds for node in self._nodes.values()]
        there = [rounds for rounds in all_rounds if rounds.base is not None and rounds.base.round + 1 == self._round]
        return {leave.peer: leave for rounds in there for leave in rounds.leaves()}

    def _to_adopt(self, old: Voters) -> PreparedValue | None:
        """The last value that was voted for, if members that do not answer may have decided it."""
        answers = {peer: self._ledger.last_vote(peer, self._round) for peer in [*self._able, *self._leaves]}
        votes = [vote for vote in answers.values() if vote is not None]
        if not votes:
            return None
        top = max(votes, key=lambda vote: vote.ballot.order)
        holders = [peer for peer, vote in answers.items() if vote is not None and vote.proposal == top.proposal]

        def may_have_decided(voters: Voters) -> bool:
            possible = [*holders, *(voter for voter in voters if voter not in answers)]
            return holds_quorum(possible, voters, [peer for peer in self._leaves if peer not in possible])

        return top if may_have_decided(old) and may_have_decided(top.proposal.voters) else None

    def _absent(self, voters: Voters) -> list[str]:
        signed_off = self._ledger.leaves[self._round]
        absent = [voter for voter in voters if voter not in self._able and voter not in self._leaves]
        return [f"{peer} (whose LEAVE is lost)" if peer in signed_off else peer for peer in absent]

    def _lost_chunks(self, value: PreparedValue) -> list[int]:
        there = [node for node in self._nodes.values() if node.member.rounds.base and node.round == self._round - 1]
        missing = [node.member.rounds.shelf.missing(value.chunks) for node in there]
        return [chunk for chunk in range(len(value.chunks)) if all(chunk in each for each in missing)]

    def _too_few(self) -> str:
        shape = next(iter(self._nodes.values())).shape
        needed = max(shape.min_members, shape.start_members if self._round == 1 else 1)
        if len(self._able) < needed:
            return f"{len(self._able)} of at least {needed} members are left"
        return "" if any(peer not in shape.keepers for peer in self._able) else "nobody who trains is left"


def _has(node: Peer, round: int) -> bool:
    return node.round >= round or node.knows(round)
