"""Agendas and worker weights of replicas give what the rule gives, to the bit, in any order of events."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from shoal.node.ipc.messages import Landing, Train
from shoal.node.ipc.vectors import moments_size
from shoal.node.supervisor.agenda import Agenda, Stint
from shoal.node.training.methods.gossip import Gossip, mix
from shoal.node.training.methods.method import PARAMETERS, Answer, Exchange, Method, Vectors
from shoal.node.training.methods.noloco import NoLoCo
from shoal.node.training.methods.timetable import Timetable
from tests.unit.methods.agenda_kit import Worker

D, PEERS, ROUNDS, STEPS = 9, 4, 6, 5
METHODS: dict[str, Method] = {
    "noloco": NoLoCo(STEPS, 0.5, 0.7, 0.7),
    "noloco, delay": NoLoCo(STEPS, 0.5, 0.7, 0.7, 2),
    "noloco, hardly a pause": NoLoCo(STEPS, 0.5, 0.7, 0.7, STEPS - 1),
    "gossip": Gossip(STEPS),
    "gossip, delay": Gossip(STEPS, delay=3),
}
Partner = Callable[[int, int], int | None]  # (peer, round) -> with whom it exchanges


def step_of(peer: int, step: int, theta: Tensor) -> Tensor:
    """An inner step towards a target of the peer's own, which moves."""
    target = torch.randn(D, generator=torch.Generator().manual_seed(100 * peer + step))
    return theta - 0.1 * (theta - target)


def partners(seed: int) -> Partner:
    """Pairs of each round, of which some fail."""
    rng, drawn = random.Random(seed), []
    for _ in range(ROUNDS + 1):
        order = rng.sample(range(PEERS), PEERS)
        pairs = [pair for pair in zip(order[::2], order[1::2], strict=True) if rng.random() < 0.7]
        drawn.append({one: other for pair in pairs for one, other in (pair, pair[::-1])})
    return lambda peer, round: drawn[round].get(peer)


def answer_of(method: Method, own: int, other: int, sent: Sequence[Tensor]) -> Answer:
    """`sent`: of both, each (1 + n, d)."""
    if method.exchange is Exchange.GRAPH:
        return Answer(mix(sent[0][0], [sent[1][0]], [0.5]), 2)
    return Answer(torch.stack(list(sent) if own < other else list(sent)[::-1]), 2, int(own > other))


def along(method: Method, payload: Tensor, held: Vectors) -> Tensor:
    return torch.stack((payload, *(held[name] for name in method.sends)))


def by_the_rule(method: Method, theta: Tensor, partner: Partner) -> list[Vectors]:
    """The replica of each peer after the last round."""
    begun = [method.begin(theta) for _ in range(PEERS)]
    held, private = [each[0] for each in begun], [each[1] for each in begun]
    thetas, round, answers = [theta] * PEERS, 0, dict[int, Answer]()
    for step in range(1, ROUNDS * STEPS + method.delay + 1):
        thetas = [step_of(peer, step, each) for peer, each in enumerate(thetas)]
        if method.launches(step):
            round += 1
            made = [method.contribute(0, thetas[peer], held[peer], private[peer]) for peer in range(PEERS)]
            sent = [along(method, each.payload, held[peer]) for peer, each in enumerate(made)]
            private = [each.private for each in made]
            met = {peer: other for peer in range(PEERS) if (other := partner(peer, round)) is not None}
            answers = {own: answer_of(method, own, other, (sent[own], sent[other])) for own, other in met.items()}
        if step > method.delay and method.launches(step - method.delay):
            for peer in range(PEERS):
                if peer in answers:
                    held[peer] = method.apply(0, held[peer], answers[peer])
                    merged = method.merge(0, thetas[peer], held[peer], private[peer], answers[peer])
                else:
                    merged = method.lapse(0, thetas[peer], held[peer], private[peer], PEERS)
                thetas[peer], private[peer] = merged
    return held


@dataclass
class Peer:
    index: int
    agenda: Agenda
    worker: Worker
    held: list[Vectors]  # by round
    stint: Stint | None
    sent: dict[int, Tensor] = field(default_factory=dict)  # by round

    @property
    def base(self) -> int:
        return len(self.held) - 1


class Swarm:
    """Daemons and workers; what happens next is what the dice say."""

    def __init__(self, method: Method, theta: Tensor, partner: Partner, seed: int) -> None:
        self._method, self._partner, self._rng = method, partner, random.Random(seed)
        self._timetable = Timetable(method)
        self.peers = [self._peer(index, theta) for index in range(PEERS)]

    def run(self) -> None:
        while choices := [each for each in self.peers if each.stint is not None or self._outcome(each) is not None]:
            peer = self._rng.choice(choices)
            outcome = self._outcome(peer)
            if outcome is not None and (peer.stint is None or self._rng.random() < 0.5):
                peer.held.append(outcome)
                peer.stint = peer.agenda.committed(peer.base) or peer.stint
            else:
                self._work(peer)

    def _peer(self, index: int, theta: Tensor) -> Peer:
        agenda = Agenda(self._timetable, ROUNDS)
        worker = Worker(self._method, torch.zeros(moments_size(D, 0)), D)
        return Peer(index, agenda, worker, [self._method.begin(theta)[0]], agenda.begin(0))

    def _outcome(self, peer: Peer) -> Vectors | None:
        """The replica after the next round; None while that is not over."""
        round = peer.base + 1
        other = self._partner(peer.index, round) if round <= ROUNDS else None
        if round > ROUNDS or round not in peer.sent or (other is not None and round not in self.peers[other].sent):
            return None
        if other is None:
            return peer.held[-1]
        sent = peer.sent[round], self.peers[other].sent[round]
        return self._method.apply(0, peer.held[-1], answer_of(self._method, peer.index, other, sent))

    def _work(self, peer: Peer) -> None:
        stint, worker = peer.stint, peer.worker
        assert stint is not None
        newest = max(stint.landings, default=peer.base)
        worker.agreed[:] = torch.cat([peer.held[newest][name] for name in self._method.reads]).numpy()
        met = {round: round > 0 and self._partner(peer.index, round) is not None for round in stint.landings}
        landings = tuple(Landing(k, met[k], k == newest, 2, ()) for k in stint.landings)
        order = Train(1, stint.round, 0, newest, stint.first, stint.steps, stint.hand_in, stint.is_fresh, landings)
        worker.weights.take(order)
        before = self._timetable.launch(stint.round - 1) + stint.first
        for step in range(before + 1, before + stint.steps + 1):
            worker.model.load(step_of(peer.index, step, worker.model.theta))
        if stint.hand_in:
            payload = worker.weights.contribute(stint.round, worker.model.read(), torch.empty(D))
            peer.sent[stint.round] = along(self._method, payload.clone(), peer.held[stint.round - 1])
        peer.stint = peer.agenda.done()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", METHODS)
def test_any_order_of_events_comes_to_what_the_rule_gives(name: str, seed: int) -> None:
    print(f"seed {seed}")
    method, theta, partner = METHODS[name], torch.randn(D, generator=torch.Generator().manual_seed(5)), partners(seed)
    swarm = Swarm(method, theta, partner, seed)
    swarm.run()
    expected = by_the_rule(method, theta, partner)
    for peer, held in zip(swarm.peers, expected, strict=True):
        assert peer.base == ROUNDS
        for vector, value in held.items():
            assert torch.equal(peer.held[-1][vector], value), (peer.index, vector)
    assert any(not torch.equal(each[PARAMETERS], expected[0][PARAMETERS]) for each in expected), "replicas differ"
