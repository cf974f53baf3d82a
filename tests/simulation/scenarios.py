"""Small worlds built for one kind of trouble each, where a missing rule shows within a few seeds.

Each is a function of a seed; it raises Violation, with the promise's name, if one is broken.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgpack

from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Effect, Send, Timer
from shoal.protocol.base.ids import Digest, PeerId, content_hash, result_hash
from shoal.protocol.base.masks import mask_of, masked
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Direct, Give, Made, Mean, Offer
from tests.simulation.campaign import build, make_peace
from tests.simulation.disks import lose_power, lose_the_journal
from tests.simulation.faults import At, During, Fault, FaultPlan
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.swarm import SNAPSHOT, Peer, Shape, peers_named
from tests.simulation.versions import root_of
from tests.simulation.world import World

SOON = 120.0  # virtual seconds
SLOW_DISK = 40.0  # virtual seconds until means are forced, at most: longer than a round


def calm(seed: int) -> None:
    """A few peers, and nothing goes wrong."""
    play(seed, 3 + seed % 3, LAN, [])


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
    play(seed, count, Link(delay=0.01, jitter=rng.choice((0.3, 3.0)), duplicate=0.5), faults)


def left_out(seed: int) -> None:
    """Owners take live contributors for dead, or lose their bytes."""
    rng = random.Random(f"left out {seed}")
    count = rng.choice((3, 4, 5))
    faults = [
        _aimed(rng, rng.choice(("accuse", "accuse", "cut")), rng.choice(("scatter", "gather")), peers_named(count), 48)
        for _ in range(4)
    ]
    play(seed, count, Link(delay=0.01, jitter=0.05), faults)


def memory_hit(seed: int) -> None:
    """A member applies a round, and holds other bytes than the others: it must not contribute from there."""
    world, oracle = settled(seed, 4)
    apply_wrongly(world.node(peers_named(4)[seed % 4]), oracle)
    goes_on(world, oracle, 4)


def keeper_hit(seed: int) -> None:
    """The same of one that hears no offers, since it neither votes nor owns anything."""
    keeper = peers_named(4)[3]
    world, oracle = settled(seed, 4, Shape(start_members=4, keepers=(keeper,)))
    apply_wrongly(world.node(keeper), oracle)
    goes_on(world, oracle, 4)


def proposer_hit(seed: int) -> None:
    """The same of the proposer, which owns all and hears no offers for a while: nobody must vote for its result.

    The others have no workers meanwhile, so nothing comes of the round without it.
    """
    others = peers_named(4)[1:]
    world, oracle = settled(seed, 4, Shape(start_members=4, unreachable=tuple(others)))
    node = world.node(peers_named(4)[0])
    assert node.member.log.proposer == node.me
    apply_wrongly(node, oracle)
    wrong = node.round + 1
    world.run_until(lambda: node.round >= wrong, within=SOON)
    honest, until = node.receive, world.now + 40.0

    def receive(now: float, sender: PeerId, message: Message) -> list[Effect]:
        return [] if isinstance(message, Offer) and world.now < until else honest(now, sender, message)

    node.receive = receive  # type: ignore[method-assign]
    for each in others:
        world.command(each, lambda node, now: node.lose_worker(now))
    world.run(40.0)
    for each in others:
        world.command(each, lambda node, now: node.regain_worker(now))
    goes_on(world, oracle, 3)


def silent_worker(seed: int) -> None:
    """A member lives, answers, and never hands in."""
    world, oracle = settled(seed, 3 + seed % 2)
    world.node(world.living()[seed % 3])._submit = lambda now: []  # type: ignore[method-assign]
    goal = oracle.newest + 2
    _until(world, lambda: oracle.newest >= goal, f"a member that never hands in keeps round {goal} from being decided")


def away(seed: int) -> None:
    """A member stands still while the others go on, for a round or for many."""
    world, oracle = settled(seed, 4)
    victim = world.living()[seed % 4]
    world.pause(victim)
    world.run(random.Random(f"away {seed}").choice((4.0, 8.0, 30.0)))
    world.resume(victim)
    goes_on(world, oracle, 3)


def killed_at_once(seed: int) -> None:
    """All processes are killed as soon as a result is decided; the machines live, so nothing is lost."""
    _all_end(seed, has_power=True)


def killed_as_one_has_applied(seed: int) -> None:
    """All processes are killed as soon as the first has applied a result, and perhaps written it down."""
    world, oracle = settled(seed, 3 + seed % 2)
    goal = oracle.newest + 2

    def end(peer: PeerId) -> None:
        node = world.node(peer)
        if node.round == goal and not (node.unwritten and seed % 3):
            for other in world.living():
                world.kill(other)

    world.watchers.append(end)
    world.run_until(lambda: not world.living(), within=SOON)
    world.watchers.remove(end)
    _all_come_back(world, oracle, goal, goal)


def lacked_by_one(seed: int) -> None:
    """A voter gets no bytes of a result, for so long that it takes them for lost; all others hold them."""
    world, oracle = settled(seed, 4)
    goal, lacking = oracle.newest + 2, world.node(world.living()[1 + seed % 3])
    honest = lacking.receive

    def receive(now: float, sender: PeerId, message: Message) -> list[Effect]:
        is_lost = isinstance(message, Mean) and message.round >= goal
        return [] if is_lost else honest(now, sender, message)

    def stop_training(_: PeerId) -> None:  # so that nothing is decided after it
        for node in world.nodes():
            node._submit = lambda now: []  # type: ignore[method-assign]

    lacking.receive = receive  # type: ignore[method-assign]
    at_decision(world, oracle, goal, stop_training)
    _until(world, lambda: lacking.member.log._lacks is not None, f"nobody takes round {goal} for lost")
    world.run(5.0)
    lacking.receive = honest  # type: ignore[method-assign]
    _until(world, lambda: all_at(world, goal), f"round {goal} is not everywhere")
    held(oracle, goal)


def power_cut_at_once(seed: int) -> None:
    """All machines lose power as soon as a result is decided: it may be undone, and no other."""
    _all_end(seed, has_power=False)


def slow_disks(seed: int) -> None:
    """Means take longer to be forced than a round takes; then all lose power: one round is undone, at most."""
    world, oracle = settled(seed, 4, Shape(start_members=4, forcing=SLOW_DISK))
    rng = random.Random(f"slow disks {seed}")
    world.run(rng.uniform(0.0, 60.0))
    newest = oracle.newest
    for peer in world.living():
        world.kill(peer)
        lose_power(world.disks[peer], rng)
    for peer in world.disks:
        world.start(peer)
    _until(world, lambda: all_at(world, newest + 2), f"round {newest + 2} is not decided after a power cut of all")
    held(oracle, newest - 1)


def needed_and_behind(seed: int) -> None:
    """One is killed before it has the means of a result; then those who have applied it are, and one stays away."""
    world, oracle = settled(seed, 3)
    first, second, third = world.living()
    goal = oracle.newest + 2
    world.network.set_uplink(third, 1.0)
    at_decision(world, oracle, goal - 1, lambda _: _cut_off(world, third))
    _until(world, lambda: world.node(first).round == world.node(second).round == goal, f"round {goal} is not decided")
    for peer in (first, second, third):
        world.kill(peer)
    world.network.heal()
    for peer in (first, third):
        world.start(peer)
    _until(world, lambda: all_at(world, goal + 2), "a member that two thirds can do without keeps them waiting")


def _cut_off(world: World[Peer], victim: PeerId) -> None:
    for peer in world.living():
        if peer != victim:
            world.network.cut(peer, victim)


def dead_with_the_last_bytes(seed: int) -> None:
    """Lines are slow, and the proposer dies with its result decided, while bytes still wait at its line."""
    world, oracle = build(seed, 4, LAN)
    world.run_until(lambda: all(len(node.member.log.register.voters) == 4 for node in world.nodes()), within=SOON)
    for peer in world.living():
        world.network.set_uplink(peer, 4 << 20)
        world.restart(peer)
    _until(world, lambda: all_at(world, oracle.newest), "nobody comes back")
    goal = oracle.newest + 2
    at_decision(world, oracle, goal, lambda peer: world.kill(world.node(peer).member.log.proposer))
    _until(world, lambda: oracle.newest > goal and all_at(world, goal + 1), f"round {goal + 1} is not everywhere")
    if oracle.voided:
        raise Violation("Termination", f"rounds {sorted(oracle.voided)} are void because of one death")


def lossy_death(seed: int) -> None:
    """One of ten messages is lost, and an owner dies."""
    rng = random.Random(f"lossy death {seed}")
    world, oracle = settled(seed, 4, Shape(chunks=12, start_members=4))
    world.network.set_loss(0.1)
    FaultPlan([Fault("kill", During("gather", rng.randint(1, 20)))]).arm(world)
    goal = oracle.newest + 3
    _until(world, lambda: oracle.newest >= goal, f"round {goal} is not decided over bad lines")


def slow_worker(seed: int) -> None:
    """A worker makes steps all the time, and hands in only when it is asked to."""
    world, oracle = settled(seed, 4)
    slow = world.living()[seed % 4]
    node = world.node(slow)
    honest = node.fire

    def fire(now: float, timer: Timer) -> list[Effect]:
        return [] if timer.name == "trained" else honest(now, timer)

    node.fire = fire  # type: ignore[method-assign]
    goal = oracle.newest + 5
    _until(world, lambda: oracle.newest >= goal, f"round {goal} is not decided")
    counted = [
        round
        for round, decision in oracle.decisions.items()
        if round > goal - 4 and slow in masked(decision.roster, decision.result.counted)
    ]
    if not counted:
        raise Violation("Termination", f"{slow} trains, and counts in none of the rounds before {goal}")


def forged(seed: int) -> None:
    """A member sends means of contributions that nobody made: as its own, or with what an owner has signed."""
    world, oracle = settled(seed, 4)
    liar = world.living()[1 + seed % 3]
    node = world.node(liar)
    honest = node.receive

    def receive(now: float, sender: PeerId, message: Message) -> list[Effect]:
        effects = honest(now, sender, message)
        return [*effects, *_forgery(world, liar)] if isinstance(message, Contribution | Give) else effects

    node.receive = receive  # type: ignore[method-assign]
    goal = oracle.newest + 3
    _until(world, lambda: oracle.newest >= goal, "a liar keeps the rounds from being decided")


def weighs_more(seed: int) -> None:
    """A member contributes by another weight than it has offered: it counts nowhere, and the owners say who it was."""
    world, oracle = settled(seed, 4)
    liar = world.living()[1 + seed % 3]
    node = world.node(liar)
    fire, receive = node.fire, node.receive

    def lie(effects: list[Effect]) -> list[Effect]:
        return [_weighing_more(effect) for effect in effects]

    node.fire = lambda now, timer: lie(fire(now, timer))  # type: ignore[method-assign]
    node.receive = lambda now, sender, message: lie(receive(now, sender, message))  # type: ignore[method-assign]
    goal = oracle.newest + 3
    _until(world, lambda: oracle.newest >= goal, "a liar keeps the rounds from being decided")
    if liar not in {each.peer for node in world.nodes() for each in node.blamed}:
        raise Violation("Fair blame", f"nobody says what {liar} has done")


def _weighing_more(effect: Effect) -> Effect:
    if isinstance(effect, Send) and isinstance(effect.message, Contribution):
        return replace(effect, message=replace(effect.message, weight=effect.message.weight + 1))
    return effect


def deaths_in_a_row(seed: int) -> None:
    """An owner dies, and then one that inherited from it, while messages overtake each other."""
    rng = random.Random(f"two deaths {seed}")
    world, oracle = settled(seed, 6, Shape(chunks=24, start_members=6), Link(delay=0.01, jitter=0.3, duplicate=0.5))
    round, victims = oracle.newest + 2, rng.sample(world.living()[1:], 2)
    costs = Costs(round)
    world.taps.append(costs.saw)
    wait = rng.randint(1, 60)

    def strike(peer: PeerId) -> None:
        nonlocal wait
        exchange = world.node(peer).member.rounds.round
        wait -= exchange is not None and exchange.number == round and exchange.exchange.is_under_way
        if victims and wait <= 0:
            world.kill(victims.pop())
            wait = rng.randint(1, 60)

    world.watchers.append(strike)
    _until(world, lambda: all_at(world, round + 1), f"round {round} is not decided after two deaths")
    if oracle.voided:
        raise Violation("Termination", f"rounds {sorted(oracle.voided)} are void, though a quorum lives")
    costs.check(world.living())


def half_a_broadcast(seed: int) -> None:
    """An owner dies when it has given its mean to some of the others, who give it to the new owner."""
    world, oracle = settled(seed, 5)
    costs = Costs(oracle.newest + 2)
    victim, left = world.living()[1 + seed % 4], 1 + seed % 2

    def count(peer: PeerId, effect: Effect) -> None:
        nonlocal left
        if peer == victim and isinstance(effect, Send) and isinstance(effect.message, Mean):
            left -= effect.message.round == costs.round
            if not left:
                world.kill(victim)

    world.taps += [costs.saw, count]
    goes_on(world, oracle, 4)
    costs.check(world.living())
    if costs.needless:
        raise Violation("Cheap loss", f"{costs.needless} are sent again, though their senders have the means")


def applied_by_one(seed: int) -> None:
    """All lose power when the first of them has applied a result, and has the state on its disk: it is undone."""
    world, oracle = settled(seed, 4, Shape(start_members=4, forcing=4.0))
    goal = (oracle.newest // SNAPSHOT + 1) * SNAPSHOT
    rng = random.Random(f"applied by one {seed}")

    def end(peer: PeerId) -> None:
        if world.node(peer).round == goal and world.is_alive(peer):
            for other in world.living():
                world.kill(other)
                lose_power(world.disks[other], rng)

    world.watchers.append(end)
    world.run_until(lambda: not world.living(), within=SOON)
    world.watchers.remove(end)
    for peer in world.disks:
        world.start(peer)
    _until(world, lambda: all_at(world, goal + 3), f"round {goal + 3} is not decided after a power cut of all")
    held(oracle, goal - 1)


def restarts(seed: int) -> None:
    """Members die one after the other in the middle of a round, and are back within a second."""
    rng = random.Random(f"restarts {seed}")
    moments = [During(rng.choice(("scatter", "gather", "prepare", "commit")), rng.randint(1, 40)) for _ in range(4)]
    play(seed, 5, LAN, [Fault("kill", moment, lasts=rng.uniform(0.1, 1.0)) for moment in moments])


@dataclass
class Costs:
    """What is sent again in one round."""

    round: int
    sent: Counter[tuple[PeerId, int]] = field(default_factory=Counter)  # contributions, by sender and chunk
    moves: set[tuple[int, int]] = field(default_factory=set)  # (chunk, epoch), as somebody directed
    given: set[tuple[PeerId, int]] = field(default_factory=set)  # means, by receiver and chunk
    needless: list[tuple[PeerId, int]] = field(default_factory=list)  # sent again by who was given the mean

    def saw(self, peer: PeerId, effect: Effect) -> None:
        """An effect of `peer` goes out."""
        match effect:
            case Send(message=Contribution(round=self.round, chunk=chunk)):
                self.sent[peer, chunk] += 1
                if self.sent[peer, chunk] > 1 and (peer, chunk) in self.given:
                    self.needless.append((peer, chunk))
            case Send(to=to, message=Mean(round=self.round, chunk=chunk)):
                self.given.add((to, chunk))
            case Send(message=Direct(round=self.round, epochs=epochs)):
                self.moves.update(epochs)

    def check(self, peers: Sequence[PeerId]) -> None:
        """Violation if one of `peers` has sent more again than had to move to another owner."""
        for peer in peers:
            again = sum(count - 1 for (sender, _), count in self.sent.items() if sender == peer)
            if again > len(self.moves):
                raise Violation("Cheap loss", f"{peer} has sent {again} chunks again for {len(self.moves)} moves")


def earlier_lives(seed: int) -> None:
    """Votes, offers and bytes come seconds after their senders were started again, some of them without their votes."""
    rng = random.Random(f"earlier lives {seed}")
    world, oracle = settled(seed, 5, link=Link(delay=0.01, jitter=3.0, duplicate=0.5))
    victims, reborn = rng.sample(world.living(), 3), rng.random() < 0.7
    for turn, victim in enumerate(victims):
        world.at(world.now + rng.uniform(0.0, 12.0), partial(_begin_again, world, victim, reborn and not turn))
    world.run(14.0)
    make_peace(world, oracle)
    if world.errors:
        raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")


def _begin_again(world: World[Peer], peer: PeerId, without_votes: bool) -> None:
    world.kill(peer)
    if without_votes:
        lose_the_journal(world.disks[peer], random.Random())
    world.start(peer)


# -- what they are made of ----------------------------------------------------------------------------------------


def settled(seed: int, count: int, shape: Shape | None = None, link: Link = LAN) -> tuple[World[Peer], Oracle]:
    """A swarm in which all vote."""
    world, oracle = build(seed, count, link, shape)
    voters = count - len(shape.keepers if shape is not None else ())
    world.run_until(lambda: all(len(node.member.log.register.voters) == voters for node in world.nodes()), within=SOON)
    return world, oracle


def all_at(world: World[Peer], round: int) -> bool:
    """Whether all who live stand at this round, or later."""
    return all(node.round >= round for node in world.nodes())


def goes_on(world: World[Peer], oracle: Oracle, rounds: int) -> None:
    """Violation unless all who live come so many rounds further, and count in the last one."""
    goal = oracle.newest + rounds
    _until(world, lambda: all_at(world, goal), f"round {goal} is not everywhere")
    roster = oracle.decisions[goal].roster
    if missing := [peer for peer in world.living() if peer not in roster]:
        raise Violation("Termination", f"{missing} live, and are in no round any more")
    if world.errors:
        raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")


def held(oracle: Oracle, newest: int) -> None:
    """Violation unless all rounds up to `newest` are decided, and none is undone."""
    if lost := set(range(1, newest + 1)) - set(oracle.results):
        raise Violation("Held", f"rounds {sorted(lost)} were decided, and are lost")


def play(seed: int, count: int, link: Link, faults: list[Fault]) -> None:
    """So many peers under these faults, then peace."""
    world, oracle = build(seed, count, link)
    FaultPlan(faults).arm(world)
    world.run(16.0)
    make_peace(world, oracle)
    if world.errors:
        raise Violation("Fair blame", f"an honest peer is blamed: {world.errors[0]}")


def apply_wrongly(node: Peer, oracle: Oracle) -> None:
    """The next round that `node` applies turns into something else in its memory, once; the oracle knows."""
    honest, checks, hit = node._put, oracle.holds, list[Digest]()

    def put(decision: Decision) -> None:
        node._put = honest  # type: ignore[method-assign]
        honest(decision)
        node.state = [content_hash(b"hit" + old) for old in node.state]
        hit.append(root_of(node.state))

    def holds(peer: PeerId, round: int, root: Digest) -> None:
        if root not in hit:
            checks(peer, round, root)

    node._put = put  # type: ignore[method-assign]
    oracle.holds = holds  # type: ignore[method-assign]


def _until(world: World[Peer], condition: Callable[[], bool], what: str) -> None:
    try:
        world.run_until(condition, within=SOON)
    except Violation:
        raise
    except AssertionError:
        raise Violation("Termination", f"{what} within {SOON} s") from None


def _all_end(seed: int, has_power: bool) -> None:
    """All end when the first of them has written down that a result is decided: with what follows from that, or not."""
    world, oracle = settled(seed, 3 + seed % 2)
    goal, rng = oracle.newest + 2, random.Random(f"all end {seed}")

    def end(peer: PeerId) -> None:
        for other in world.living():
            world.kill(other)
            if not has_power:
                lose_power(world.disks[other], rng)

    at_decision(world, oracle, goal, end, is_step_over=bool(seed // 2 % 2))
    world.run_until(lambda: not world.living(), within=SOON)
    _all_come_back(world, oracle, goal, goal if has_power else goal - 1)


def _all_come_back(world: World[Peer], oracle: Oracle, goal: int, kept: int) -> None:
    """All were killed, and start again; what was decided up to round `kept` holds."""
    world.run(0.001)
    for peer in world.disks:
        world.start(peer)
    _until(world, lambda: all_at(world, goal + 2), f"round {goal + 2} is not decided after all were killed")
    held(oracle, kept)


def at_decision(
    world: World[Peer], oracle: Oracle, round: int, act: Callable[[PeerId], None], is_step_over: bool = True
) -> None:
    """Call `act` with the first that writes down the result of `round`: after its step, or in the middle."""
    done: list[PeerId] = []

    def look(peer: PeerId) -> None:
        if oracle.newest == round and not done:
            done.append(peer)
            act(peer)

    if is_step_over:
        world.watchers.append(look)
    else:
        world.taps.append(lambda peer, effect: look(peer))


def _forgery(world: World[Peer], liar: PeerId) -> list[Effect]:
    """Means of all chunks of the open round, to everybody."""
    round = world.node(liar).member.rounds.round
    if round is None or not round.exchange.roster:
        return []
    effects: list[Effect] = []
    roster, number = round.exchange.roster, round.number
    for chunk, owner in enumerate(round.exchange.owners()):
        fact = [roster[0], number, round.base.root, chunk, 1e6, 1]
        payload, mask = msgpack.packb([[fact], 1e6]), mask_of(roster, roster[:1])
        made = round.exchange.means[chunk] or Made(
            result_hash(mask, payload), mask, round.exchange.epochs[chunk], owner, 1, b"signed by nobody"
        )
        mean = Mean(0, number, chunk, made, payload)
        effects += [Send(peer, mean) for peer in world.living() if peer != liar]
    return effects


def _aimed(rng: random.Random, kind: str, phase: str, others: list[PeerId], events: int) -> Fault:
    chosen = rng.sample(others, rng.randint(1, max(1, len(others) - 1)))
    return Fault(kind, During(phase, rng.randint(1, events)), others=tuple(chosen), lasts=rng.uniform(0.5, 6.0))
