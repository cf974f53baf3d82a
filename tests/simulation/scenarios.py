"""Small worlds built for one kind of trouble each, where a missing rule shows within a few seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import PeerId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Join, Prepared
from shoal.protocol.rounds.agreement.roster import Base, rank
from tests.simulation.campaign import build
from tests.simulation.faults import At, During, Fault, FaultPlan
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle
from tests.simulation.peace import make_peace
from tests.simulation.promises import Violation
from tests.simulation.single_death import CountingWorld
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.versions import root_of
from tests.simulation.world import World


def calm(seed: int) -> None:
    """A few peers, and nothing goes wrong."""
    _play(seed, 3 + seed % 3, LAN, [])


def lost_commit(seed: int) -> None:
    """A leader counts its votes and decides, but nobody hears of it; for good, or until it is heard again."""
    rng = random.Random(f"lost commit {seed}")
    count = rng.choice((4, 5, 6))
    faults = []
    for _ in range(2):
        moment = During("prepare", rng.randint(1, 3 * count))
        faults.append(Fault("cut", moment, others=tuple(peers_named(count)), lasts=rng.uniform(3.0, 9.0)))
    _play(seed, count, Link(delay=0.01, jitter=rng.choice((0.01, 0.1))), faults)


def split_vote(seed: int) -> None:
    """While a minority is cut off, the majority's leader decides, but nobody hears of it until much later."""
    rng = random.Random(f"split vote {seed}")
    names = peers_named(5)
    world, oracle = build(seed, len(names), LAN)
    base = _next_base(world, lambda base: True)
    leader, *others = rank(base, 1, names)
    minority = rng.sample(others, 2)
    rest = [leader, *(name for name in others if name not in minority)]
    world.network.partition(minority, rest)
    pairs = [*product(minority, rest), *product(rest[1:], minority)]
    world.at(world.now + rng.uniform(8.0, 14.0), lambda: world.network.mend_all(pairs))
    _silence_in_prepare(world, leader, base.round + 1)
    _finish(world, oracle)


def rival_leaders(seed: int) -> None:
    """Two members lead, because some take the first for dead; a keeper changes its mind between them.

    Then the first decides, and nobody hears of it.
    """
    keeper, names = PeerId("p04"), peers_named(5)
    shape = Shape(start_members=5, unreachable=(keeper,), keepers=(keeper,))
    world, oracle = build(seed, len(names), LAN, shape)

    def suits(base: Base) -> bool:
        first, second = rank(base, 1, names)[:2]
        return keeper not in (first, second) and first < second

    base = _next_base(world, suits)
    first, second, *others = rank(base, 1, names)
    joined = _arrivals(world.node(first), Join, base.round + 1)
    follower = next(peer for peer in others if peer != keeper)
    for peer in (second, follower):
        _blind(world.node(peer), first)
    _silence_in_prepare(world, first, base.round + 1)

    def change_mind(peer: PeerId) -> None:
        if peer == first and world.node(keeper).member.rounds.base is not None and keeper in joined:
            world.watchers.remove(change_mind)
            see_again = _blind(world.node(keeper), first)
            world.command(keeper, lambda node, now: node.accuse(now, first))
            see_again()

    world.watchers.append(change_mind)
    _finish(world, oracle)


def two_deaths(seed: int) -> None:
    """An owner dies, and then one that inherited from it, while messages overtake each other: no reason to abort."""
    rng = random.Random(f"two deaths {seed}")
    names = peers_named(7)
    shape = Shape(start_members=7, unreachable=tuple(names[3:]))
    link = Link(delay=0.01, jitter=rng.choice((0.1, 0.3)), duplicate=0.5)
    oracle = Oracle(names[0])
    world = CountingWorld(lambda me, now, disk, rng: Peer(me, names, disk, rng, oracle, shape), seed, link)
    world.taps.append(oracle.saw)
    world.post.unreachable.extend(shape.unreachable)
    for name in names:
        world.start(name)
    base = _next_base(world, lambda base: True)
    victims, wait = [names[1], names[2]], rng.randint(1, 30)

    def strike(peer: PeerId) -> None:
        nonlocal wait
        attempt = world.node(peer).member.rounds.attempt
        wait -= attempt is not None and peer == victims[0]
        if attempt is not None and wait <= 0:
            world.kill(victims.pop(0))
            wait = rng.randint(1, 30)
            if not victims:
                world.watchers.remove(strike)

    world.watchers.append(strike)
    world.run_until(lambda: all(node.round > base.round for node in world.nodes()) or not victims, within=120.0)
    world.run_until(lambda: all(node.round > base.round for node in world.nodes()), within=120.0)
    if any(number == base.round + 1 for number, _, _ in oracle.aborts):
        raise Violation("Termination", f"both quorums survive, but {oracle.aborts[0]}")
    resent = max(world.resent(peer, base.round + 1) for peer in world.living())
    if resent > len(world.moves[base.round + 1]):
        raise Violation("Cheap loss", f"{resent} chunks sent again for {len(world.moves[base.round + 1])} moves")


def left_out(seed: int) -> None:
    """Owners take live contributors for dead, or lose their bytes."""
    rng = random.Random(f"left out {seed}")
    count = rng.choice((3, 4, 5))
    names = peers_named(count)
    faults = [
        _aimed(rng, rng.choice(("accuse", "accuse", "cut")), rng.choice(("scatter", "gather")), names, 12 * count)
        for _ in range(4)
    ]
    _play(seed, count, Link(delay=0.01, jitter=0.05), faults)


def echoes(seed: int) -> None:
    """Every other message comes twice, and some come very late; one peer dies, one is believed dead."""
    rng = random.Random(f"echoes {seed}")
    count = rng.choice((3, 4, 5))
    names = peers_named(count)
    faults = [
        Fault("kill", During(rng.choice(("scatter", "gather")), rng.randint(1, 60)), lasts=0.0),
        _aimed(rng, "accuse", "gather", names, 60),
        Fault("pause", At(rng.uniform(4.0, 12.0)), victim=names[-1], lasts=rng.uniform(0.5, 3.0)),
    ]
    _play(seed, count, Link(delay=0.01, jitter=rng.choice((0.3, 3.0)), duplicate=0.5), faults)


def restarts(seed: int) -> None:
    """Members die one after the other while a round is decided, and are back within a second."""
    rng = random.Random(f"restarts {seed}")
    moments = [During(rng.choice(("scatter", "prepare", "commit")), rng.randint(1, 40)) for _ in range(4)]
    _play(seed, 5, LAN, [Fault("kill", moment, lasts=rng.uniform(0.1, 1.0)) for moment in moments])


def memory_hit(seed: int) -> None:
    """A member applies a round, and holds other bytes than the others: it must not contribute from there."""
    names = peers_named(4)
    world, oracle = build(seed, len(names), LAN)
    world.run_until(lambda: oracle.newest >= 2, within=60.0)
    apply_wrongly(world.node(names[seed % 4]))
    _finish(world, oracle)


def apply_wrongly(node: Peer) -> None:
    """The next round that `node` applies turns into something else in its memory, once."""
    honest = node._apply

    def apply(now: float) -> list[Effect]:
        node._apply = honest  # type: ignore[method-assign]
        decision, node._decision = node._decision, None
        assert decision is not None
        node.state = [content_hash(b"hit" + old) for old in node.state]
        node._standing = decision.round
        node.store.put(decision.round, list(node.state))
        return node._train(node.member.applied(now, root_of(node.state)))

    node._apply = apply  # type: ignore[method-assign]


def _aimed(rng: random.Random, kind: str, phase: str, others: list[PeerId], events: int) -> Fault:
    chosen = rng.sample(others, rng.randint(1, max(1, len(others) - 1)))
    return Fault(kind, During(phase, rng.randint(1, events)), others=tuple(chosen), lasts=rng.uniform(0.5, 6.0))


def _next_base(world: World[Peer], suits: Callable[[Base], bool]) -> Base:
    """Run until all train on one base that `suits`; that base."""

    def bases() -> list[Base | None]:
        return [node.member.rounds.base for node in world.nodes()]

    def is_time() -> bool:
        base = bases()[0]
        phases = {node.member.phase for node in world.nodes()}
        return base is not None and base.round > 0 and set(bases()) == {base} and phases == {"training"} and suits(base)

    world.run_until(is_time, within=120.0)
    base = bases()[0]
    assert base is not None
    return base


def _silence_in_prepare(world: World[Peer], leader: PeerId, round: int) -> None:
    """Nobody hears `leader` from the moment at which it has proposed; it hears everybody."""
    others = [peer for peer in world.living() if peer != leader]
    voted = _arrivals(world.node(leader), Prepared, round)

    def cut(peer: PeerId) -> None:
        if peer == leader and voted:
            world.watchers.remove(cut)
            for other in others:
                world.network.cut(leader, other)
            world.at(world.now + 40.0, lambda: world.network.mend_all(product([leader], others)))

    world.watchers.append(cut)


def _blind(node: Peer, to: PeerId) -> Callable[[], None]:
    """`node` takes `to` for dead, whatever others say, until the returned function is called."""
    membership = node.member.membership
    alive, is_alive = membership.alive, membership.is_alive
    membership.alive = lambda: [peer for peer in alive() if peer != to]  # type: ignore[method-assign]
    membership.is_alive = lambda peer: peer != to and is_alive(peer)  # type: ignore[method-assign]

    def see_again() -> None:
        membership.alive, membership.is_alive = alive, is_alive  # type: ignore[method-assign]

    return see_again


def _arrivals(node: Peer, kind: type[Join | Prepared], round: int) -> set[PeerId]:
    """Filled with those from whom a message of `kind` about `round` arrives at `node` from now on."""
    senders: set[PeerId] = set()
    receive = node.receive

    def listen(now: float, sender: PeerId, message: Message) -> list[Effect]:
        if isinstance(message, kind) and message.round == round:
            senders.add(sender)
        return receive(now, sender, message)

    node.receive = listen  # type: ignore[method-assign]
    return senders


def _finish(world: World[Peer], oracle: Oracle) -> None:
    world.run(45.0)
    make_peace(world, oracle)


def _play(seed: int, count: int, link: Link, faults: list[Fault]) -> None:
    world, oracle = build(seed, count, link)
    FaultPlan(faults).arm(world)
    world.run(16.0)
    make_peace(world, oracle)
    if world.errors:
        victim, error = world.errors[0]
        raise Violation("Fair blame", f"{victim} blames an honest peer: {error}")
