"""Plays in which a run goes on without a quorum, and what is promised of its branches; a broken promise is named.

- No haste: nobody founds a branch while it reaches a quorum for what comes next and has had the time to notice, or
  sooner than it may, and who was away decides nothing before it has looked for the others.
- No swap: of two branches that meet one yields, and never both.
- One history: soon after the network is whole all are members of one branch, and decide rounds.
- Holder: no branch is founded by members none of whom holds the state that the log ends with, or the one before.
- Left: who leaves by its own wish while the network is cut has left the run that is one again.
- Once: the tokens behind the run are those of the results that its own branch has decided, each counted once.

    python -m tests.simulation.branching FROM TO [FILE]

plays these seeds of storms (see `Storm`), as campaign.py does with others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shoal.node.run.log_store import AWAY
from shoal.protocol.base.effects import Effect, Persist
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.log.keeper import LOOK, SLEPT
from shoal.protocol.log.register import after, body_of, has_life, has_member, is_voter, tokens_of, who_left
from shoal.protocol.log.trust import Crash
from shoal.protocol.member.presence import GOING
from shoal.protocol.messages.log import Decided, Register, Yield
from tests.simulation.campaign import PEACE, Peace, Report, build, main, told_of
from tests.simulation.disks import Disk, lose_the_means, lose_the_state, lose_the_votes
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.swarm import Peer, Shape, peers_named
from tests.simulation.world import World

PROMISES = ("No haste", "No swap", "One history", "Once", "Holder", "Left")
PATIENCE = 30.0  # virtual seconds without a quorum
NOTICED = 10.0  # within which a member knows that it reaches others again
SOON = 60.0
LATE = 10.0  # virtual seconds within which all come back
SETTLING = 25.0  # in which voters find each other, and a view in which to decide
ROUNDS = 3
CUTS = {
    "3 | 3": (3, 3),
    "4 | 2": (4, 2),
    "2 | 2 | 2": (2, 2, 2),
    "1 | 1": (1, 1),
    "2 | 1": (2, 1),
    "1 | 2": (1, 2),
}


def swarm(seed: int, peers: int, **more: Any) -> tuple[World[Peer], Oracle]:
    """All of them vote."""
    world, oracle = build(seed, peers, LAN, Shape(start_members=peers, **more))
    world.run_until(lambda: len(register(world).voters) == peers, within=SOON)
    return world, oracle


def register(world: World[Peer], peer: PeerId | None = None) -> Register:
    """As `peer` knows it, or the first of those who live."""
    node = world.node(peer) if peer is not None else next(iter(world.nodes()))
    return node.member.log.register


def newest(oracle: Oracle) -> int:
    """The last round that is decided on any branch."""
    return max((each.newest for each in oracle.branches.values()), default=0)


class Branching:
    """Looks after every input at who founds a branch, and which one yields to which."""

    def __init__(self, world: World[Peer]) -> None:
        self._world = world
        self._known = {register(world).branch}
        self._living = set(world.living())
        self._stuck_since: dict[PeerId, float] = {}  # when a peer first reached no quorum, or was started
        self._able_since = dict.fromkeys(world.disks, world.now)  # of those who reach one
        self._branch: dict[PeerId, Digest] = {}
        self._yields: dict[Digest, Digest] = {}
        world.watchers.append(self._look)
        world.taps.append(self._hear)

    def _look(self, peer: PeerId) -> None:
        if not self._world.is_alive(peer):
            return
        now = register(self._world, peer)
        if peer not in self._living:
            self._stuck_since[peer] = self._world.now
        self._living = set(self._world.living())
        if now.branch not in self._known:
            self._known.add(now.branch)
            self._check_founding(peer, now)
        if self._branch.get(peer) != now.branch:
            self._branch[peer] = now.branch
            # As of a start: it does not know yet whom it reaches there.
            self._stuck_since[peer] = self._able_since[peer] = self._world.now
        if not self._reaches_quorum(peer, now):
            self._stuck_since.setdefault(peer, self._world.now)
            self._able_since.pop(peer, None)
        elif self._world.now - self._able_since.setdefault(peer, self._world.now) > NOTICED:
            self._stuck_since.pop(peer, None)

    def _reaches_quorum(self, peer: PeerId, now: Register) -> bool:
        """Whether enough voters are there to decide what comes next, which those who have voted may be bound to.

        All of it as the world knows it, and not as `peer` does. A branch that has yielded decides nothing any more.
        """
        if now.yields_to != NO_DIGEST:
            return False
        here = [voter for voter in now.voters if self._reaches(peer, voter, now)]
        cores = {voter: self._world.node(voter).member.log.core for voter in here}
        bound = {voter: core.lock.entry for voter, core in cores.items() if core.lock and core.register.tip == now.tip}
        changed = {entry: after(now, entry, cores[voter].rules) for voter, entry in bound.items()}
        unbound = [voter for voter in here if voter not in bound or changed[bound[voter]].voters == now.voters]
        if Crash().is_quorum(unbound, now.voters, 0):
            return True
        return Crash().is_quorum(here, now.voters, 0) and any(
            Crash().is_quorum([voter for voter in each.voters if self._reaches(peer, voter, each)], each.voters, 0)
            for each in changed.values()
        )

    def _reaches(self, peer: PeerId, voter: PeerId, register: Register) -> bool:
        """Whether a voter is there, on this branch, and in the life in which it votes."""
        world = self._world
        if not world.is_alive(voter) or world.node(voter).has_parted or not world.network.connects(peer, voter):
            return False
        core = world.node(voter).member.log.core
        return core.register.branch == register.branch and is_voter(register, voter, core.life)

    def _check_founding(self, founder: PeerId, begun: Register) -> None:
        """One of those who go on has waited for so long; the others go with it."""
        now = self._world.now
        waited = now - min(self._stuck_since.get(member.peer, now) for member in begun.members)
        if waited < PATIENCE - 2.0:  # ticks of a clock that counts seconds
            raise Violation("No haste", f"{founder} founds a branch {waited:.1f} s after all had reached a quorum")

    def _hear(self, peer: PeerId, effect: Effect) -> None:
        if not (isinstance(effect, Persist) and isinstance(effect.record, Decided)):
            return
        entry = effect.record.entry
        body = body_of(entry.body)
        if isinstance(body, Yield):
            self._yields[entry.branch] = body.branch
            if self._yields.get(body.branch) == entry.branch:
                raise Violation("No swap", "two branches yield to each other")


def become_one(
    world: World[Peer], oracle: Oracle, names: Sequence[PeerId], within: float, patience: float = SOON
) -> float:
    """All of these are in one run soon, and decide rounds; the virtual seconds until they were."""
    took = soon(world, partial(is_one, world, names), within, "not all are members of one branch")
    goal = max(node.member.log.register.parts[0].round for node in world.nodes()) + ROUNDS
    soon(world, lambda: all(node.round >= goal for node in world.nodes()), patience, "rounds do not go on")
    soon(world, lambda: set(register(world).voters) == set(names), patience, "not all vote again")
    check_tokens(world, oracle)
    if blamed := [(node.me, each) for node in world.nodes() for each in node.blamed]:
        raise Violation("Fair blame", f"an honest peer is blamed: {blamed[0]}")
    return took


def soon(
    world: World[Peer], condition: Callable[[], bool], within: float, what: str, promise: str = "One history"
) -> float:
    """The virtual seconds until `condition` holds; a broken promise if that is not soon."""
    try:
        return world.run_until(condition, within)
    except Violation:
        raise
    except AssertionError as error:
        raise Violation(promise, what) from error


def is_one(world: World[Peer], names: Sequence[PeerId]) -> bool:
    """Whether these are all who live, and all are members of one branch."""
    if set(world.living()) != set(names):
        return False
    registers = [node.member.log.register for node in world.nodes()]
    last = max(registers, key=lambda each: each.number)
    is_same = {each.branch for each in registers} == {last.branch}
    return is_same and all(has_life(last, node.me, node.member.log.core.life) for node in world.nodes())


def check_tokens(world: World[Peer], oracle: Oracle) -> None:
    """Those behind the run are those of the results that its own branch has, each counted once."""
    now = max((node.member.log.register for node in world.nodes()), key=lambda each: each.number)
    of_branch = oracle.on(now.branch)
    if of_branch.voided:
        return
    decided = sum(sum(each.weights) for each in of_branch.results.values())
    if tokens_of(now) != decided:
        raise Violation("Once", f"the run counts {tokens_of(now)} tokens, and its branch has decided {decided}")


# -- plays --------------------------------------------------------------------------------------------------------


def cut(seed: int, sizes: Sequence[int] = (3, 3)) -> float:
    """A run is cut into parts of these sizes for longer than it waits; seconds until it was one again."""
    rng = random.Random(f"cut {sizes} {seed}")
    world, oracle = swarm(seed, sum(sizes), continue_after=PATIENCE)
    Branching(world)
    names = peers_named(sum(sizes))
    rng.shuffle(names)
    world.network.partition(*(names[sum(sizes[:at]) : sum(sizes[: at + 1])] for at in range(len(sizes))))
    world.run(PATIENCE + rng.uniform(20.0, 120.0))
    if len({register(world, peer).branch for peer in names}) == 1:
        raise Violation("One history", "no part that had no quorum goes on")
    world.network.heal()
    return become_one(world, oracle, names, SOON)


def leaves_while_cut(seed: int) -> float:
    """One of a lesser part that has gone on leaves before the network is whole; seconds until the run was one again."""
    rng = random.Random(f"leaves while cut {seed}")
    world, oracle = swarm(seed, 6, continue_after=PATIENCE)
    names = rng.sample(peers_named(6), 6)
    lesser, greater, leaver = names[:2], names[2:], names[0]
    before = register(world).branch
    world.network.partition(lesser, greater)
    world.run_until(lambda: register(world, leaver).branch != before, within=PATIENCE + SETTLING)
    world.command(leaver, lambda node, now: node.stop(now))
    world.run_until(partial(_has_parted, world, leaver), within=GOING + 1.0)
    world.kill(leaver)
    if not has_member(register(world, greater[0]), leaver):
        raise AssertionError("the greater part has removed it before, so this play shows nothing")
    world.network.heal()
    rest = [name for name in names if name != leaver]
    took = soon(world, partial(is_one, world, rest), SOON, "not all are members of one branch")
    has_left = f"{leaver} has left the lesser part, and not the run"
    soon(world, lambda: leaver in who_left(register(world)), SETTLING, has_left, promise="Left")
    become_one(world, oracle, rest, SOON)
    return took


def last_to_stop(seed: int, peers: int = 3, bare: int = 0) -> float:
    """All stop in order, and the last one is lost; seconds until the others were one run again.

    So many are `bare`: they have lost their states, and the others the last round's means; then a round needs two.
    """
    rng = random.Random(f"last to stop {seed}")
    world, oracle = swarm(seed, peers, continue_after=PATIENCE, min_members=2 if bare else 1)
    Branching(world)
    names = peers_named(peers)
    rng.shuffle(names)
    for name in names:
        world.command(name, lambda node, now: node.stop(now))
        world.run_until(partial(_has_parted, world, name), within=GOING + 1.0)
        world.kill(name)
    last = register(world, names[-1]).parts[0].round
    for name in names[:-1] if bare else ():
        disk: Disk = world.disks[name]
        lose_the_state(disk, rng) if name in names[:bare] else lose_the_means(disk, last)
    world.run(rng.uniform(0.0, 100.0))
    left = names[:-1]
    for name in left:
        world.at(world.now + rng.uniform(0.0, 20.0), partial(world.start, name))
    took = become_one(world, oracle, left, 20.0 + LOOK + PATIENCE + SOON)
    world.start(names[-1])
    become_one(world, oracle, names, 2 * SOON)
    return took


def _has_parted(world: World[Peer], peer: PeerId) -> bool:
    return world.node(peer).has_parted


def boots_before_its_network(seed: int) -> None:
    """The needed voter of two was away for long, and sees nobody for a while when it is back."""
    world, oracle = swarm(seed, 2, continue_after=PATIENCE)
    first, second = register(world).voters
    world.kill(first)
    world.run(PATIENCE + random.Random(f"boots {seed}").uniform(20.0, 120.0))
    world.network.partition([first], [second])
    world.disks[first]["was_away"] = True  # type: ignore[assignment]
    world.start(first)
    number = register(world, first).number
    world.run(0.5 * LOOK)
    if register(world, first).number != number:
        raise Violation("No haste", f"{first} was away for long, and decides without having looked for the others")
    world.network.heal()
    become_one(world, oracle, [first, second], SOON)


def wakes_before_its_network(seed: int) -> None:
    """The needed voter of two has slept, the other has gone on, and it sees nobody for a while when it wakes."""
    world, oracle = swarm(seed, 2, continue_after=PATIENCE)
    first, second = register(world).voters
    rng = random.Random(f"wakes {seed}")
    world.pause(first)
    world.run(2 * SLEPT + rng.uniform(0.0, 60.0))
    if register(world, second).voters != (second,):
        raise Violation("Going on", f"{second} does not go on without who sleeps")
    world.network.partition([first], [second])
    number = register(world, first).number
    world.resume(first)
    world.run(0.5 * LOOK)
    if register(world, first).number != number:
        raise Violation("No haste", f"{first} has slept for long, and decides without having looked for the others")
    world.network.heal()
    become_one(world, oracle, [first, second], SOON)


def wakes_and_finds_nobody(seed: int) -> None:
    """The other one of two is lost for good while the needed voter sleeps."""
    world, _ = swarm(seed, 2, continue_after=PATIENCE)
    first, second = register(world).voters
    world.pause(first)
    world.run(2 * SLEPT)
    world.kill(second)
    world.resume(first)
    goal = world.node(first).round + ROUNDS
    soon(world, lambda: world.node(first).round >= goal, LOOK + SETTLING, "rounds do not go on")


def wakes_beside_one_who_waited(seed: int, sleepers: int) -> float:
    """One of three is lost, then so many of the others sleep; seconds until rounds go on after they woke."""
    world, oracle = swarm(seed, 3, continue_after=None)
    rng = random.Random(f"beside {sleepers} {seed}")
    lost, *others = rng.sample(peers_named(3), 3)
    world.kill(lost)
    world.run(rng.uniform(0.0, 20.0))
    for name in others[:sleepers]:
        world.pause(name)
    world.run(2 * SLEPT + rng.uniform(0.0, 60.0))
    woke = world.now
    for name in others[:sleepers]:
        world.at(world.now + rng.uniform(0.0, 5.0), partial(world.resume, name))
    world.run(5.0)
    goal = newest(oracle) + ROUNDS
    soon(world, lambda: all(node.round >= goal for node in world.nodes()), SETTLING, "rounds do not go on")
    return world.now - woke


def back_without_some(seed: int, peers: int, lost: int) -> float:
    """All were away for long, and so many never come back; seconds until the others decided rounds."""
    rng = random.Random(f"back without some {peers} {lost} {seed}")
    world, oracle = swarm(seed, peers)
    names = peers_named(peers)
    rng.shuffle(names)
    for name in names:
        world.kill(name)
    world.run(PATIENCE)
    started = world.now
    for name in names[lost:]:
        world.disks[name]["was_away"] = True  # type: ignore[assignment]
        world.at(world.now + rng.uniform(0.0, LATE), partial(world.start, name))
    world.run(LATE)
    goal = newest(oracle) + ROUNDS
    soon(world, lambda: all(node.round >= goal for node in world.nodes()), LOOK + SETTLING, "rounds do not go on")
    return world.now - started


def all_begin_another_life(seed: int, peers: int = 3) -> float:
    """The votes of all are lost from their disks, so none of them may vote as it did; seconds until they went on."""
    world, oracle = swarm(seed, peers, continue_after=PATIENCE)
    Branching(world)
    names = random.Random(f"another life {seed}").sample(peers_named(peers), peers)
    world.run_until(lambda: newest(oracle) >= 3, within=SOON)
    for name in names:
        world.kill(name)
        lose_the_votes(world.disks[name])
    for name in names:
        world.start(name)
    return become_one(world, oracle, names, PATIENCE + SOON)


def holder_comes_later(seed: int) -> None:
    """One stops, then the other, and the first has lost its state: nothing goes on before the other is back."""
    world, oracle = swarm(seed, 2, continue_after=PATIENCE)
    Branching(world)
    world.run_until(lambda: newest(oracle) >= 3, within=SOON)  # so what all begin with is not the state before
    names = random.Random(f"holder {seed}").sample(peers_named(2), 2)
    for name in names:
        world.command(name, lambda node, now: node.stop(now))
        world.run_until(partial(_has_parted, world, name), within=GOING + 1.0)
        world.kill(name)
    last = register(world, names[-1]).parts[0].round
    lose_the_state(world.disks[names[0]], random.Random(seed))
    world.start(names[0])
    world.run(LOOK + PATIENCE + SOON)
    if register(world, names[0]).earlier:
        raise Violation("Holder", f"{names[0]} goes on without the state after round {last}")
    world.start(names[1])
    become_one(world, oracle, names, SOON)


class Storm:
    """Cuts within cuts, deaths, orderly stops and starts, the next one often before the last one is mended."""

    MOST = 7  # members, and events

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"storm {seed}")
        self.peers = self._rng.randint(2, self.MOST)
        self.names = peers_named(self.peers)
        self.world, self.oracle = swarm(seed, self.peers, continue_after=PATIENCE)
        self.told: list[str] = []
        self._ran = dict.fromkeys(self.names, self.world.now)  # when a peer last noted that it runs
        self.world.watchers.append(self._note_running)
        Branching(self.world)

    def play(self) -> float:
        """Seconds until all were one run, once the network was whole and all had been started again."""
        try:
            for _ in range(self._rng.randint(2, self.MOST)):
                event = self._rng.choice((self._cut, self._cut, self._heal, self._kill, self._stop, self._start))
                self.told.append(f"{self.world.now:.0f} {event()}")
                self.world.run(self._rng.choice((self._rng.uniform(0.0, 5.0), self._rng.uniform(5.0, 100.0))))
            self.told.append(f"{self.world.now:.0f} peace")
            self.world.network.heal()
            self._start()
            return become_one(self.world, self.oracle, self.names, PEACE, PEACE)
        except Exception as error:
            error.add_note(f"{self.peers} peers; {'; '.join(self.told)}")
            raise

    def _dead(self) -> list[PeerId]:
        return [name for name in self.names if not self.world.is_alive(name)]

    def _some_living(self) -> list[PeerId]:
        living = self.world.living()
        return self._rng.sample(living, self._rng.randint(1, len(living))) if living else []

    def _cut(self) -> str:
        """Beside the cuts that there are, so of a part that is cut off as well."""
        names = self._rng.sample(self.names, self.peers)
        at = sorted(self._rng.randint(1, self.peers - 1) for _ in range(self._rng.choice((1, 1, 2))))
        parts = [part for part in (names[: at[0]], names[at[0] : at[-1]], names[at[-1] :]) if part]
        self.world.network.partition(*parts)
        return "cut " + " | ".join(" ".join(part) for part in parts)

    def _heal(self) -> str:
        self.world.network.heal()
        return "heal"

    def _kill(self) -> str:
        lost = self._some_living()
        for name in lost:
            self.world.kill(name)
        return f"kill {lost}"

    def _stop(self) -> str:
        gone = self._some_living()
        for name in gone:
            self.world.command(name, lambda node, now: node.stop(now))
        self.world.run(GOING + 1.0)
        for name in gone:
            if self.world.is_alive(name):
                self.world.kill(name)
        return f"stop {gone}"

    def _start(self) -> str:
        back = self._dead()
        for name in back:
            disk: Disk = self.world.disks[name]
            disk["was_away"] = self.world.now - self._ran[name] > AWAY
            self.world.start(name)
        return f"start {back}"

    def _note_running(self, peer: PeerId) -> None:
        """As a node does, unless it still has to look for the others."""
        if self.world.is_alive(peer) and not self.world.node(peer).member.log.core.looks:
            self._ran[peer] = self.world.now


def storm(seed: int) -> float:
    """See `Storm`; the seconds until the run was one again."""
    return Storm(seed).play()


def report_on(seed: int) -> Report:
    """`storm`, for a campaign: what went wrong is in the report."""
    storm = Storm(seed)
    try:
        peace = Peace(took=storm.play())
    except Exception as error:
        return Report(seed, storm.peers, failure=told_of(error))
    return Report(seed, storm.peers, rounds=newest(storm.oracle), peace=peace)


if __name__ == "__main__":
    main(report_on)
