"""The core of the log, searched: no number has two values, whatever is lost, repeated, late, crashed or lied about.

Each rule of docs/log.md is also taken out once, and the search, from where it matters, must find what it was for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import pytest

from shoal.protocol.base.effects import Persist
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log import certificate, core
from shoal.protocol.log.core import Turn
from shoal.protocol.log.register import Rules, body_of
from shoal.protocol.log.trust import Byzantine, Crash
from shoal.protocol.messages.log import AddVoters, ChangeView, Decided, Leave, Phase, Propose, Register, Subject, Vote
from tests.simulation import log_search
from tests.simulation.log_search import Search, State, World
from tests.simulation.log_worlds import PEERS, world
from tests.simulation.promises import Violation

A, B, C, D = PEERS[:4]
CHANGES = ((1, 2), (2, 3), (3, 2), (2, 1), (4, 3), (3, 4))
STATES = 150_000  # in all, of which each world gets a share,
LEAST = 100_000  # of which so many are distinct
SEEDS = 12  # that are tried until the voters of after have decided something, too

WORLDS = [
    *(
        world(before, after, trust, views=3, crashes=1)
        for (before, after), trust in product(CHANGES, (Crash, Byzantine))
    ),
    *(world(before, after, Crash, views=3, leaver=A) for before, after in ((2, 1), (3, 2))),
    *(world(before, after, Crash, views=2, losses=1) for before, after in ((3, 2), (3, 4))),
    *(
        world(4, after, Byzantine, views=3, liars=(liar,), asker=B if liar == A else A)
        for after in (3, 5)
        for liar in (A, B, D)
    ),
    *(world(4, 3, trust, views=3, crashes=1, expects=False) for trust in (Crash, Byzantine)),
]


def named(each: World) -> str:
    wanted = f"{len(each.register.voters)}-voters-{len(each.honest)}-honest"
    return f"{type(each.rules(A).trust).__name__}-{wanted}-{each.crashes}-{each.losses}"


@pytest.mark.parametrize("each", WORLDS, ids=named)
def test_every_number_has_one_value(each: World) -> None:
    look_through(each, 1, seed=1)


def look_through(world: World, times: int, seed: int) -> None:
    """Its share of the states, so many times; again with other seeds as long as nothing was decided by other voters."""
    for more in range(SEEDS):
        if has_decided_all(world, times, seed + more):
            return
    raise AssertionError(f"after the voters are others nothing is decided with {SEEDS} seeds")


def has_decided_all(world: World, times: int, seed: int) -> bool:
    """Whether that is so in a share of the states, half of them from where some have just decided who votes then.

    From the beginning alone the second entry is hardly ever decided where the first one has changed the voters.
    """
    search, reached = Search(world, seed), list[State]()
    share = times * STATES // len(WORLDS)
    changed = search.decide(search.wish(search.beginning(), 0), by=len(world.honest) // 2)
    seen = search.explore(share // 2, changed, reached)
    search.explore(share - seen, reached=reached)
    assert len(set(reached)) * len(WORLDS) >= times * LEAST
    return max((len(log) for log in search.logs if log and changes_voters(log[0])), default=0) >= world.entries


def changes_voters(decided: Decided) -> bool:
    return isinstance(body_of(decided.entry.body), AddVoters | Leave)


@pytest.mark.parametrize("each", [each for each in WORLDS if not each.losses and not each.liars], ids=named)
def test_once_messages_arrive_all_that_is_wanted_is_decided_everywhere(each: World) -> None:
    search = Search(each, seed=3)
    reached: list[State] = []
    search.explore(2000, reached=reached)
    for state in reached[::40]:
        search.check_settles(state)


@pytest.mark.slow
@pytest.mark.parametrize("each", WORLDS, ids=named)
def test_every_number_has_one_value_in_a_million_states(each: World) -> None:
    look_through(each, 10, seed=2)


@pytest.mark.parametrize("each", [each for each in WORLDS if isinstance(each.rules(A).trust, Crash)], ids=named)
def test_what_is_repeated_was_said_before(each: World) -> None:
    """So it is searched: any message may be delivered again.

    Not with `Byzantine`: there an entry may be proposed by other statements, which the search takes for the same.
    """
    search, reached = Search(each, seed=4), list[State]()
    search.explore(2000, reached=reached)
    repeated = {kind for state in reached for kind in search.check_repeats(state)}
    assert repeated >= ({ChangeView, Propose, Vote} if len(each.register.voters) > 1 else {ChangeView, Vote})


def test_a_world_of_two_is_searched_to_its_end() -> None:
    assert Search(world(1, 2, Crash, views=2, entries=1), seed=1).explore(STATES) < STATES


# -- rules taken out ----------------------------------------------------------------------------------------------

Script = Callable[[Search], State]
Patch = Callable[[pytest.MonkeyPatch], None]


def beginning(search: Search) -> State:
    return search.beginning()


def without_views(patch: pytest.MonkeyPatch) -> None:
    def votes_on(subject: Subject, votes: Sequence[Vote]) -> list[Vote]:
        return [vote for vote in votes if replace(vote.subject, view=subject.view) == subject]

    patch.setattr(core, "votes_on", votes_on)


def without_locks(patch: pytest.MonkeyPatch) -> None:
    for module in (core, log_search):
        patch.setattr(module, "binding", lambda changes, number: None)


def with_the_lowest_lock(patch: pytest.MonkeyPatch) -> None:
    def lowest(changes: Sequence[ChangeView], number: int) -> object:
        locks = [each.lock for each in changes if each.number == number and each.lock is not None]
        return min(locks, key=lambda lock: lock.view, default=None)

    patch.setattr(core, "binding", lowest)


def forgetting_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turn, "_let_go", lambda turn: turn._set(lock=None))


def without_those_after(patch: pytest.MonkeyPatch) -> None:
    _decide_by(patch, lambda register, changed: register)


def without_those_before(patch: pytest.MonkeyPatch) -> None:
    _decide_by(patch, lambda register, changed: changed)


def _decide_by(patch: pytest.MonkeyPatch, who: Callable[[Register, Register], Register]) -> None:
    def decides(voted: set[PeerId], register: Register, changed: Register, rules: Rules) -> bool:
        entitled = who(register, changed)
        return rules.trust.is_quorum(voted, entitled.voters, entitled.faults)

    for module in (core, certificate):
        patch.setattr(module, "decides", decides)


def sent_before_written(patch: pytest.MonkeyPatch) -> None:
    cast = Turn._cast

    def hasty(turn: Turn, *arguments: object) -> None:
        before = len(turn.effects)
        cast(turn, *arguments)  # type: ignore[arg-type]
        made = turn.effects[before:]
        writes = [each for each in made if isinstance(each, Persist) and each.name == "vote"]
        turn.effects[before:] = [*(each for each in made if each not in writes), *writes]

    patch.setattr(Turn, "_cast", hasty)


def without_lives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "has_life", lambda register, peer, life: True)
    for module in (core, certificate):
        patch.setattr(module, "is_voter", lambda register, peer, life: peer in register.voters)


def without_written_promises(patch: pytest.MonkeyPatch) -> None:
    ask = Turn._ask_for

    def forgetful(turn: Turn, view: int) -> None:
        before = len(turn.effects)
        ask(turn, view)
        made = turn.effects[before:]
        turn.effects[before:] = [each for each in made if not isinstance(each, Persist) or each.name != "vote"]

    patch.setattr(Turn, "_ask_for", forgetful)


def without_waiting_for_statements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "is_ground", lambda changes, register, rules: True)


def with_any_certificate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(certificate, "decides", lambda voted, register, changed, rules: True)


@dataclass(frozen=True, slots=True)
class WithoutPrepares(Byzantine):
    """A proposal stands as its own prepare, though its proposer may lie."""

    phases: tuple[Phase, ...] = (Phase.COMMIT,)


class ByMajority(Byzantine):
    """Liars do not make a quorum larger."""

    def is_quorum(self, present: Collection[PeerId], voters: Sequence[PeerId], faults: int) -> bool:
        return 2 * sum(voter in present for voter in voters) >= len(voters)


def unchanged(patch: pytest.MonkeyPatch) -> None:
    """The trust itself is another one."""


def without_proof_of_freedom(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core.Turn, "_check_grounds", lambda turn, sender, message: None)


def two_proposals(search: Search) -> State:
    """A has proposed to nobody yet; B, in the next view, has the statements of a quorum, and proposes."""
    state = search.wish(search.beginning(), 1)
    state = search.fire(state, B)
    state = search.deliver(state, B, C, ChangeView)
    state = search.deliver(state, C, B, ChangeView)
    state = search.wish(state, 2)
    state = search.fire(state, C)
    state = search.deliver(state, C, A, ChangeView)
    state = search.deliver(state, A, C, ChangeView)
    return search.deliver(state, A, C, Vote)


def a_lock_is_held(search: Search) -> State:
    """A, C and D hold a lock on what A proposes, A has decided it, and C and D ask for the view of B, which lies."""
    state = search.wish(search.beginning(), 1)
    for peer in (C, D):
        state = search.deliver(state, A, peer, Propose)
    honest = (A, C, D)
    for sender, to in permutations(honest, 2):
        if sender != A or to != A:
            state = search.deliver(state, sender, to, Vote)
    for sender in (C, D):
        state = search.deliver(state, sender, A, Vote)
    for peer in (C, D):
        state = search.fire(state, peer)
    return state


def a_proposal_is_taken(search: Search) -> State:
    """B has voted for what A proposes."""
    state = search.wish(search.beginning(), 0)
    state = search.deliver(state, A, B, Propose)
    return search.deliver(state, A, B, Vote)


MUTANTS: dict[str, tuple[Patch, World, Script, int]] = {  # the seed is one that finds it soon
    "the view is left out of what is counted": (without_views, world(3, 2, Crash, views=4), two_proposals, 3),
    "the highest lock is ignored": (without_locks, world(3, 2, Crash, views=3), beginning, 6),
    "another lock than the highest binds": (with_the_lowest_lock, world(3, 2, Crash, views=4), two_proposals, 7),
    "a lock is let go though others may have it": (forgetting_locks, world(3, 2, Crash, views=4), two_proposals, 4),
    "the voters after an entry are not asked": (without_those_after, world(2, 1, Crash, leaver=A), beginning, 0),
    "a voter that is not there is added": (without_those_after, world(3, 4, Crash), beginning, 2),
    "the voters before an entry are not asked": (without_those_before, world(3, 2, Crash), beginning, 9),
    "a vote is sent before it is written": (sent_before_written, world(3, 2, Crash, views=3, crashes=1), beginning, 3),
    "a promise is not written": (without_written_promises, world(3, 3, Crash, views=4, crashes=1), beginning, 2),
    "statements are not waited for": (without_waiting_for_statements, world(3, 2, Crash), beginning, 5),
    "a certificate is believed": (with_any_certificate, world(4, 3, Byzantine, views=1, liars=(D,)), beginning, 0),
    "lives are not looked at": (without_lives, world(3, 2, Crash, views=1, losses=1), a_proposal_is_taken, 6),
    "there are no prepares": (unchanged, world(4, 3, WithoutPrepares, views=2, entries=1, liars=(A,)), beginning, 0),
    "a quorum is a majority": (unchanged, world(4, 3, ByMajority, views=2, entries=1, liars=(A,)), beginning, 3),
    "a proposer is believed": (
        without_proof_of_freedom,
        world(4, 3, Byzantine, views=2, entries=1, liars=(B,)),
        a_lock_is_held,
        5,
    ),
    "locks are ignored among liars": (
        without_locks,
        world(4, 3, Byzantine, views=2, entries=1, liars=(B,)),
        a_lock_is_held,
        6,
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_what_each_rule_is_for(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, where, script, soon = MUTANTS[rule]
    patch(monkeypatch)
    with pytest.raises(Violation, match=r"two values|no quorum of those after"):
        search_by_seeds(where, script, (soon, *range(12)))


def search_by_seeds(where: World, script: Script, seeds: Sequence[int]) -> None:
    for seed in seeds:
        search = Search(where, seed)
        search.explore(STATES // 6, script(search))
