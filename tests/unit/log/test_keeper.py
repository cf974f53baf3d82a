"""What a voter says of the others: who is absent, and after how long, and who is on another branch of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.protocol.base.effects import Effect, Persist, Send, Tell, Timer
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, MAX_INT, Message, decode, encode
from shoal.protocol.log.certificate import certificate_of, subject_of
from shoal.protocol.log.core import Core, EntryDecided
from shoal.protocol.log.keeper import (
    ABSENT,
    FOUNDING,
    LEAVING,
    LOOK,
    SLEPT,
    TICK,
    WAKING,
    CameBack,
    Keeper,
    Said,
    Unfit,
    _counts,
)
from shoal.protocol.log.register import (
    MAX_BODY,
    after,
    body_of,
    first_state,
    has_member,
    member_of,
    next_entry,
    voters_root,
)
from shoal.protocol.log.rivals import RIVAL, STAYING, Shown
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import (
    STATEMENT_TAGS,
    Admit,
    Asks,
    Certificate,
    ChangeView,
    Consent,
    Decided,
    Found,
    GetLog,
    Lacks,
    Leave,
    Lock,
    Met,
    Phase,
    Propose,
    Register,
    Remove,
    Request,
    Result,
    Seat,
    Shortcut,
    Statement,
    Stays,
    Switch,
    Tip,
    Unheard,
    Void,
    Vote,
    Yield,
)
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import BRANCH, PEERS, Endless, Stateless, adds, register_of
from tests.simulation.signing import FakeSigner

A, B, C, D = PEERS[:4]


class Seen:
    """Membership, as the keeper sees it."""

    def __init__(self) -> None:
        self.here = {B, C}

    def alive(self) -> list[PeerId]:
        return sorted(self.here)

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.here


class Bench:
    """The keeper of A, a voter beside B and C, with a clock; its log may be some entries long."""

    def __init__(self, entries: int = 0) -> None:
        self.first = register_of(3, 3)
        now = replace(self.first, number=entries)
        self.seen, self.now = Seen(), 1000.0
        core = Core(A, member_of(now, A).life, now, rules_of(Crash, A))
        self.keeper = Keeper(core, self.seen, self.first, Shortcuts(self.first, START, now), Endless())
        self.keeper.passes(self.now)
        self.begun = self.keeper.start()

    def resume(self) -> None:
        """Begin anew with the entries that are on the disk."""
        core = self.keeper.core
        core = Core.resume(core.me, core.register, core.log, core.vote_file(), core.rules)
        self.keeper = Keeper(core, self.seen, self.first, Shortcuts(self.first, START, core.register), Endless())

    def lose(self, *peers: PeerId) -> None:
        """Membership gives these up."""
        self.seen.here -= set(peers)
        for peer in peers:
            self.keeper.peer_down(peer)

    def find(self, peer: PeerId) -> None:
        """Membership finds it again."""
        self.seen.here.add(peer)
        self.keeper.peer_up(peer)

    def run(self, seconds: float) -> set[PeerId]:
        """Whom it calls absent in that time."""
        end, said = self.now + seconds, set[PeerId]()
        while self.now < end:
            said |= self.wake(self.now + TICK)
        return said

    def fired(self) -> list[Effect]:
        """What it says when another second is over."""
        self.now += TICK
        self.keeper.passes(self.now)
        return self.keeper.fire(self.now, Timer("log", "duties", 0))[1:]  # but that it wants to be woken again

    def wake(self, now: float) -> set[PeerId]:
        """Whom it calls absent when it wakes up."""
        self.now = now
        self.keeper.passes(now)
        return called_absent(self.keeper.fire(now, Timer("log", "duties", 0)))


def called_absent(effects: list[Effect]) -> set[PeerId]:
    sent = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Statement)]
    said = [decode(each.body, None, MAX_CONTROL_FRAME, STATEMENT_TAGS) for each in sent]
    return {each.absent for each in said if isinstance(each, Unheard)}


def test_what_it_has_said_in_a_view_is_repeated_after_twice_as_long_each_time_and_at_last_every_minute() -> None:
    bench = Bench()
    repeated = [[each for each in bench.fired() if is_about_an_entry(each)] for _ in range(200)]
    assert [second for second, effects in enumerate(repeated) if effects] == [5, 15, 35, 75, 135, 195]
    assert repeated[5] == repeated[195] == list(filter(is_about_an_entry, bench.begun))


def test_what_it_says_later_in_a_view_is_repeated_soon() -> None:
    bench = Bench()
    bench.run(100)
    bench.keeper.want(Admit((signed(Asks(BRANCH, D, 1, False, b""), FakeSigner(D)),)))
    repeated = [list(filter(is_about_an_entry, bench.fired())) for _ in range(20)]
    assert [second for second, effects in enumerate(repeated) if effects] == [5, 15]
    assert any(isinstance(each.message, Request) for each in repeated[5] if isinstance(each, Send))


def test_what_it_goes_on_wanting_in_a_view_does_not_put_off_that_it_is_repeated() -> None:
    bench = Bench()
    repeated = []
    for second in range(20):
        bench.keeper.want(Admit((signed(Asks(BRANCH, D, second, False, b""), FakeSigner(D)),)))
        repeated.append(list(filter(is_about_an_entry, bench.fired())))
    assert [second for second, effects in enumerate(repeated) if effects] == [5, 11, 17]


@pytest.mark.parametrize("speaks", [False, True])
def test_who_is_lost_and_found_changes_nothing_for_the_others_and_hears_what_was_said(speaks: bool) -> None:
    bench, repeated = Bench(), []
    for second in range(80):
        bench.lose(C)
        repeated.append([each for each in bench.fired() if is_about_an_entry(each)])
        bench.seen.here.add(C)
        found = bench.keeper.receive(C, GetLog(BRANCH, 0)) if speaks else []
        found += bench.keeper.peer_up(C)
        told = [each for each in found if isinstance(each, Send)]
        assert {each.to for each in told} == {C}, second
        assert next(each for each in bench.begun if isinstance(each, Send) and each.to == C) in told
    assert [second for second, effects in enumerate(repeated) if effects] == [5, 15, 35, 75]


def is_about_an_entry(effect: Effect) -> bool:
    return isinstance(effect, Send) and not isinstance(effect.message, GetLog)


def test_who_is_away_for_a_minute_is_called_absent() -> None:
    bench = Bench()
    assert bench.run(ABSENT) == set()
    bench.lose(C)
    assert bench.run(ABSENT - 1) == set()
    assert bench.run(3) == {C}


def test_only_time_in_which_this_process_ran_counts() -> None:
    """A laptop that wakes up finds the others gone, until it has reached them."""
    bench = Bench()
    bench.run(5)
    bench.lose(B, C)
    bench.run(5)
    assert bench.wake(bench.now + 8 * 3600) == set()
    assert bench.run(ABSENT - 10) == set()
    assert bench.run(10) == {B, C}


def test_who_was_not_there_when_this_process_began_is_called_absent_as_well() -> None:
    bench = Bench()
    bench.seen.here.remove(B)
    assert bench.run(ABSENT + 2) == {B}


def test_how_long_is_learned_from_those_who_come_back() -> None:
    bench = Bench()
    for _ in range(3):
        bench.lose(C)
        assert bench.run(ABSENT - 10) == set()
        bench.find(C)
        bench.run(5)
    bench.lose(C)
    assert bench.run(ABSENT + 10) == set()
    assert bench.run(ABSENT) == {C}


def other_branch(first: Register, founder: PeerId, tokens: int) -> Shortcut:
    """The way to a branch that `founder` began alone with the first entry, and which has so many tokens by now."""
    rules, life = rules_of(Crash, A), member_of(first, founder).life
    stays = signed(Stays(first.branch, first.tip, founder, 1, 1, b"", founder, life, b""), FakeSigner(founder))
    entry = next_entry(first, Found((stays,)))
    branch = after(first, entry, rules)
    shown = Decided(entry, Certificate(subject_of(first, branch, entry, 0, Phase.COMMIT), ()))
    shortcuts = Shortcuts(first, START, first)
    shortcuts.read(first, shown, branch)
    way = shortcuts.to((), branch)
    assert way is not None
    return replace(way, tokens=tokens, stays=True)


def asks_to_yield(effects: list[Effect]) -> bool:
    return any(isinstance(each, Send) and isinstance(each.message, Request | Propose) for each in effects)


def test_who_shows_another_branch_is_there_and_who_passes_that_on_is_not() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    assert asks_to_yield(bench.keeper.receive(B, Met(bench.first.branch, C, rival)))
    assert bench.keeper.here == [A, B, C]
    bench.keeper.receive(C, rival)
    assert bench.keeper.here == [A, B]


def test_what_a_stranger_passes_on_is_nothing() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    assert bench.keeper.receive(PEERS[3], Met(bench.first.branch, C, rival)) == []


def test_a_branch_is_left_without_an_entry_only_after_some_seconds_without_a_quorum() -> None:
    """The other branch may just be yielding to ours."""
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.lose(B)
    bench.keeper.receive(C, rival)  # so C is not here
    bench.run(LEAVING - TICK)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == bench.first.branch
    bench.run(2 * TICK)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_a_switch_of_branches_is_one_record_with_the_votes_of_the_later_life() -> None:
    """Votes on what follows entries that are not there yet would be damage to whoever is killed between two records."""
    bench = Bench()
    rival = other_branch(bench.first, C, tokens=1000)
    effects = bench.keeper._switch(Shown(rival, C))
    (written,) = [each for each in effects if isinstance(each, Persist)]
    assert written == Persist("switch", Switch(rival, bench.keeper.core.vote_file()))
    assert bench.keeper.core.life > member_of(bench.first, A).life


def wish_to_leave(peer: PeerId) -> Leave:
    life = member_of(Bench().first, peer).life
    return Leave(signed(Asks(BRANCH, peer, life, True, b""), FakeSigner(peer)))


OTHERS = digest("the branch that others were on")


@pytest.mark.parametrize("restarts", [False, True])
def test_who_has_left_the_branch_of_before_is_let_go_on_the_present_one(restarts: bool) -> None:
    """Its life is over there as well, and it may go on without a quorum, as it was not removed."""
    bench, leave = Bench(), wish_to_leave(B)
    bench.lose(B)
    bench.keeper.receive(C, decided(bench.first, leave, A, B, C)[0])
    assert not has_member(bench.keeper.register, B)
    if restarts:
        bench.resume()
    here = replace(bench.first, branch=OTHERS)
    bench.keeper.core = replace(bench.keeper.core, register=here)
    bench.fired()
    assert [body_of(body) for body in bench.keeper.core.wanted] == [leave]
    bench.keeper.receive(C, decided(here, leave, A, B, C)[0])
    bench.fired()
    assert not bench.keeper.core.wanted, "once"


@pytest.mark.parametrize("peer", [A, B])
def test_nobody_who_is_here_is_let_go_for_a_wish_of_another_branch(peer: PeerId) -> None:
    """It came to nothing: that process was killed before it was decided, and goes on in the same life."""
    bench, leave = Bench(), wish_to_leave(peer)
    bench.keeper.core = replace(bench.keeper.core, register=replace(bench.first, branch=OTHERS))
    bench.keeper.receive(C, Request(OTHERS, 3, encode(leave)))
    assert not bench.keeper.core.wanted


def test_a_member_that_was_to_leave_and_is_back_does_not_vote_for_that() -> None:
    bench, leave = Bench(), wish_to_leave(A)
    bench.keeper.receive(C, Request(BRANCH, 3, encode(leave)))
    assert not bench.keeper.core.wanted
    bench.keeper.leave()
    bench.keeper.receive(C, Request(BRANCH, 3, encode(leave)))
    assert [body_of(body) for body in bench.keeper.core.wanted] == [leave]


def test_whoever_speaks_is_not_down() -> None:
    bench = Bench()
    bench.lose(B)
    assert bench.keeper.core.down == (B,)
    bench.keeper.receive(B, GetLog(bench.first.branch, 0))
    assert not bench.keeper.core.down


def asked_to_yield(bench: Bench) -> bool:
    return any(isinstance(body_of(body), Yield) for body in bench.keeper.core.wanted)


def test_it_wants_to_yield_only_as_long_as_it_hears_of_the_other_branch() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    for _ in range(10):
        bench.keeper.receive(B, Met(bench.first.branch, C, rival))
        assert asked_to_yield(bench)
        bench.run(TICK)
    bench.run(RIVAL + TICK)
    assert not asked_to_yield(bench)


def test_it_wants_to_yield_no_more_to_a_branch_that_cannot_decide_any_more() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.keeper.receive(C, rival)
    assert asked_to_yield(bench)
    bench.keeper.receive(C, replace(rival, can_decide=False))
    bench.run(TICK)
    assert not asked_to_yield(bench)


def test_it_yields_to_no_branch_whose_state_nobody_holds_who_stays() -> None:
    bench = Bench(entries=5)
    bench.keeper.receive(C, replace(other_branch(bench.first, C, tokens=1000), stays=False))
    assert not asked_to_yield(bench)


def promised(bench: Bench, peer: PeerId) -> list[bool]:
    """Whether it promises to stay, in answer to one who is on another branch and asks."""
    effects = bench.keeper.receive(peer, GetLog(digest("another"), 3))
    return [each.message.stays for each in effects if isinstance(each, Send) and isinstance(each.message, Shortcut)]


def test_a_stuck_member_keeps_its_promise_and_then_goes_only_where_somebody_promises_to_stay() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.run(TICK)
    assert promised(bench, C) == [True]
    bench.lose(B)
    bench.keeper._stuck_since = -LEAVING
    bench.keeper.receive(C, rival)
    bench.run(STAYING - TICK)
    bench.keeper.receive(C, replace(rival, stays=False))
    assert bench.keeper.register.branch == bench.first.branch, "it has promised to stay"
    bench.run(2 * TICK)
    bench.keeper.receive(C, replace(rival, stays=False))
    assert bench.keeper.register.branch == bench.first.branch, "nobody may be there any more"
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_who_knows_a_branch_above_its_own_promises_nothing() -> None:
    bench = Bench(entries=5)
    assert promised(bench, C) == [True]
    bench.keeper.receive(C, other_branch(bench.first, C, tokens=1000))
    bench.run(TICK)
    assert promised(bench, C) == [False]


def test_who_holds_no_state_promises_nothing_and_may_go_anywhere() -> None:
    bench = Bench(entries=5)
    bench.keeper._judge = Stateless()
    assert promised(bench, C) == [False]
    bench.lose(B, C)
    bench.run(LEAVING + TICK)
    rival = replace(other_branch(bench.first, C, tokens=1000), stays=False)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_what_others_have_met_is_not_passed_on() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    effects = bench.keeper.receive(B, Met(bench.first.branch, C, rival))
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, Met)]
    effects = bench.keeper.receive(C, rival)
    assert {each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Met)} == {B}
    effects = bench.keeper.receive(C, rival)
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, Met)]


def test_what_others_are_told_of_a_branch_has_the_promise_that_was_made_just_now() -> None:
    """Whoever had promised before may be gone, and nobody else there may hold the state."""
    bench = Bench(entries=5)
    rival, told = other_branch(bench.first, C, tokens=1000), list[bool]()
    for stays in (True, False):
        effects = bench.keeper.receive(C, replace(rival, stays=stays))
        told += [
            each.message.shortcut.stays for each in effects if isinstance(each, Send) and isinstance(each.message, Met)
        ]
        bench.run(RIVAL / 2)
    assert told == [True, False]


def test_who_is_below_another_branch_asks_until_somebody_promises_to_stay_there_also_after_the_end() -> None:
    bench = Bench(entries=5)
    bench.keeper.core = replace(bench.keeper.core, register=replace(bench.keeper.register, is_over=True))
    rival = other_branch(bench.first, C, tokens=1000)
    bench.keeper.receive(C, replace(rival, stays=False))
    assert Send(C, GetLog(bench.first.branch, 5)) in bench.fired()
    assert bench.keeper.register.branch == bench.first.branch
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_a_member_that_goes_on_in_a_later_life_does_not_speak_for_its_earlier_one() -> None:
    bench = Bench(entries=5)
    register = bench.keeper.register
    later = member_of(register, B).life + 1
    said = signed(Stays(register.branch, register.tip, B, 1, 1, b"", B, later, b""), FakeSigner(B))
    bench.keeper.receive(B, Statement(register.branch, register.number, encode(said)))
    assert bench.keeper.here == [A, C]
    assert set(bench.keeper.survivors) == {A, B, C}


@pytest.mark.parametrize("stays_here", [True, False])
def test_who_goes_along_founds_nothing_once_those_who_have_waited_are_gone(stays_here: bool) -> None:
    """They may have met another branch, as the last of a run that was cut twice."""
    bench = Bench(entries=5)
    bench.lose(C)
    register = bench.keeper.register
    later = member_of(register, B).life + 1  # so that nothing can be decided with it

    def b_says(founder: PeerId) -> None:
        said = signed(Stays(register.branch, register.tip, founder, 1, 1, b"", B, later, b""), FakeSigner(B))
        bench.keeper.receive(B, Statement(register.branch, register.number, encode(said)))

    b_says(founder=B)
    assert bench.keeper.goes_on_in == 0.0, "it goes along"
    if stays_here:
        b_says(founder=A)
    else:
        bench.lose(B)
    bench.run(2 * FOUNDING)
    assert (bench.keeper.register.branch != register.branch) is stays_here


def test_a_proposer_that_is_passed_has_another_one_propose_once() -> None:
    """Who downloads a state may be at it for long."""
    bench = Bench(entries=5)
    bench.keeper.core = replace(bench.keeper.core, view=0)
    bench.run(3)
    assert bench.keeper.leads
    judge = bench.keeper._judge
    judge.is_passed = lambda: True  # type: ignore[method-assign]
    changes = [each for each in bench.fired() if isinstance(each, Send) and isinstance(each.message, ChangeView)]
    assert {each.to for each in changes} == {B, C}
    assert not bench.keeper.leads
    assert not [each for each in bench.fired() if isinstance(each, Send) and isinstance(each.message, ChangeView)]


def lock_on_leave(register: Register, peer: PeerId, view: int) -> Lock:
    """Somebody has voted for the going of `peer`."""
    asks = signed(Asks(register.branch, peer, member_of(register, peer).life, True, b""), FakeSigner(peer))
    return Lock(view, next_entry(register, Leave(asks)), None)


def change_of(register: Register, peer: PeerId, view: int, lock: Lock | None) -> ChangeView:
    life = member_of(register, peer).life
    return signed(
        ChangeView(register.branch, register.number + 1, view, voters_root(register), lock, peer, life, b""),
        FakeSigner(peer),
    )


def test_who_is_bound_to_a_change_of_voters_can_decide_only_with_those_who_vote_after_it() -> None:
    bench = Bench()
    register, keeper = bench.first, bench.keeper
    keeper.core = replace(keeper.core, view=4, lock=lock_on_leave(register, C, view=3))
    assert keeper.is_quorum([B, C])
    assert not keeper.can_decide([B, C])
    assert keeper.can_decide([A, B])


def test_what_one_has_locked_binds_nobody_if_a_quorum_of_the_view_does_not_know_of_it() -> None:
    bench = Bench()
    register, keeper = bench.first, bench.keeper
    lock = lock_on_leave(register, C, view=2)
    keeper.core = replace(keeper.core, view=4, changes=(change_of(register, C, 3, lock),))
    assert keeper.core.bound is None, "it is of a view that was left"
    keeper.core = replace(keeper.core, changes=(change_of(register, C, 4, lock),))
    assert keeper.core.bound == lock.entry
    free = (change_of(register, A, 4, None), change_of(register, B, 4, None), change_of(register, C, 4, lock))
    keeper.core = replace(keeper.core, changes=free)
    assert keeper.core.bound is None


def test_who_looks_around_after_an_absence_and_sees_nobody_follows_another_branch_at_once() -> None:
    bench = Bench(entries=5)
    bench.lose(B, C)
    bench.keeper.core = replace(bench.keeper.core, looks=True)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_a_way_is_checked_though_another_one_with_as_much_to_show_is_known() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.keeper.receive(C, rival)
    bench.keeper.receive(B, Met(bench.first.branch, C, replace(rival, register=bench.first)))
    bench.lose(B, C)
    bench.run(LEAVING + TICK)
    bench.keeper.receive(B, Met(bench.first.branch, C, replace(rival, register=bench.first)))
    assert bench.keeper.register == rival.register


def decided(register: Register, body: Message, *by: PeerId) -> tuple[Decided, Register]:
    """`body` as the next entry, by the votes of these, and the register after it."""
    rules, entry = rules_of(Crash, A), next_entry(register, body)
    changed = after(register, entry, rules)
    subject = subject_of(register, changed, entry, 0, Phase.COMMIT)
    votes = [signed(Vote(subject, each, member_of(register, each).life, b""), FakeSigner(each)) for each in by]
    return Decided(entry, certificate_of(subject, votes)), changed


def test_a_voter_is_asked_about_nothing_that_follows_an_older_entry_than_the_last() -> None:
    """Several entries come at once, and the one that is wanted is about somebody who is gone after the last of them."""
    bench, first = Bench(), register_of(4, 3)
    bench.seen.here.add(D)
    bench.keeper.core = replace(bench.keeper.core, register=first, view=0, changes=())
    wanted = adds(D, first)
    assert wanted is not None
    bench.keeper.want(wanted)
    admits = Admit((signed(Asks(first.branch, PEERS[5], 9, False, b""), FakeSigner(PEERS[5])),))
    one, then = decided(first, admits, B, C)
    goes = Leave(signed(Asks(first.branch, D, member_of(first, D).life, True, b""), FakeSigner(D)))
    two, last = decided(then, goes, B, C)
    effects = bench.keeper.receive(B, Tip(first.branch, 2, (one, two)))
    told = [each.event.entry for each in effects if isinstance(each, Tell) and isinstance(each.event, EntryDecided)]
    assert told == [one.entry, two.entry]
    assert bench.keeper.register == last


def test_who_lacks_an_older_result_does_not_vote_for_undoing_the_last() -> None:
    bench = Bench()
    part = replace(first_state(0), result=7, before=5)
    register = replace(bench.first, number=9, parts=(part,))
    keeper = bench.keeper
    keeper.core = replace(keeper.core, register=register)
    keeper.lacks(7)
    keeper.core = replace(keeper.core, register=replace(register, parts=(replace(part, result=9, before=7),)))
    lacks = [signed(Lacks(register.branch, register.tip, 9, peer, 2, b""), FakeSigner(peer)) for peer in (B, C)]
    assert not keeper._is_good(Void(0, tuple(lacks)))
    keeper.lacks(9)
    assert keeper._is_good(Void(0, tuple(lacks)))


def test_what_does_not_fit_is_told_once() -> None:
    bench = Bench()
    roster = (Seat(A, 1), Seat(B, 1))
    register = replace(bench.first, parts=(replace(first_state(0), roster=roster),))
    bench.keeper.core = replace(bench.keeper.core, register=register)
    result = Result(0, 1, 0, NO_DIGEST, NO_DIGEST, b"\x03", (MAX_INT, 10), ())
    (told,) = bench.keeper.want(result)
    assert isinstance(told, Tell)
    assert isinstance(told.event, Unfit)
    assert "more tokens than there can be" in told.event.reason
    assert bench.keeper.want(result) == []


def test_who_looks_around_after_an_absence_leads_nothing() -> None:
    """What it would want is not asked for, so it would take for said what nobody was told."""
    keeper = Bench().keeper
    keeper.core = replace(keeper.core, view=0)
    assert keeper.leads
    assert keeper.listens
    keeper.core = replace(keeper.core, looks=True)
    assert not keeper.leads
    assert not keeper.listens
    assert keeper.votes_here


KEPT = register_of(4, 3)  # D has no vote
D, NOBODY = PEERS[3], PeerId("nobody")


def unheard(absent: PeerId, absent_life: int, peer: PeerId) -> Unheard:
    return Unheard(KEPT.branch, KEPT.tip, absent, absent_life, peer, member_of(KEPT, peer).life, b"")


def stays(peer: PeerId, founder: PeerId, bound: bytes) -> Stays:
    return Stays(KEPT.branch, KEPT.tip, founder, 1, 1, bound, peer, member_of(KEPT, peer).life, b"")


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [
        (unheard(D, member_of(KEPT, D).life, A), True),
        (unheard(NOBODY, 1, A), False),
        (unheard(D, member_of(KEPT, D).life + 1, A), False),
        (unheard(C, member_of(KEPT, C).life, D), False),
        (Consent(KEPT.branch, KEPT.tip, D, member_of(KEPT, D).life, b""), True),
        (Consent(KEPT.branch, KEPT.tip, NOBODY, 1, b""), False),
        (Lacks(KEPT.branch, KEPT.tip, 1, A, member_of(KEPT, A).life, b""), True),
        (Lacks(KEPT.branch, KEPT.tip, 1, D, member_of(KEPT, D).life, b""), False),
        (stays(A, A, bytes(MAX_BODY)), True),
        (stays(A, A, bytes(MAX_BODY + 1)), False),
        (stays(B, A, b"for the founder to say"), False),
    ],
)
def test_what_is_kept_of_what_others_say_is_bounded_by_members_and_voters(said: Said, is_kept: bool) -> None:
    assert _counts(said, KEPT) is is_kept


def test_a_member_without_a_vote_cannot_fill_a_voter_with_names_that_it_invents() -> None:
    bench = Bench()
    bench.keeper.core = replace(bench.keeper.core, register=KEPT)
    for number in range(100):
        said = signed(unheard(PeerId(f"nobody {number}"), 1, D), FakeSigner(D))
        bench.keeper.receive(D, Statement(KEPT.branch, KEPT.number, encode(said)))
    assert not bench.keeper._statements


def test_who_is_back_from_another_branch_is_told_of() -> None:
    bench = Bench(entries=5)
    register, rules = bench.first, rules_of(Crash, A)
    life = member_of(register, C).life + 1
    asks = signed(Asks(register.branch, C, life, False, b""), FakeSigner(C))
    changed = after(register, next_entry(register, Admit((asks,))), rules)
    assert Tell(CameBack((C,))) not in bench.keeper._after_entry(register, changed)
    bench.keeper.receive(C, other_branch(bench.first, C, tokens=0))
    bench.keeper.receive(C, GetLog(register.branch, 0))  # it has switched, and asks to be admitted
    assert Tell(CameBack((C,))) in bench.keeper._after_entry(register, changed)
    assert Tell(CameBack((C,))) not in bench.keeper._after_entry(register, changed), "once"


def found_alone(bench: Bench) -> None:
    """A goes on without the others."""
    bench.lose(B, C)
    register = bench.keeper.register
    stays = Stays(register.branch, register.tip, A, 1, 1, b"", A, member_of(register, A).life, b"")
    bench.keeper._do(bench.keeper.core.found(Found((signed(stays, FakeSigner(A)),))))


def test_who_was_left_behind_and_is_back_is_told_of() -> None:
    bench = Bench()
    life = member_of(bench.first, A).life
    found_alone(bench)
    register = bench.keeper.register
    assert [member.peer for member in register.members] == [A]
    asks = signed(Asks(register.branch, B, life + 9, False, b""), FakeSigner(B))
    assert Tell(CameBack((B,))) in bench.keeper.want(Admit((asks,)))


def test_who_reads_of_it_later_is_told_of_nobody_who_is_back() -> None:
    """It was no member when the log parted, so nobody went on without it, or with it."""
    bench, newcomer = Bench(), Bench()
    newcomer.keeper.core = replace(newcomer.keeper.core, me=PEERS[6], life=1)
    newcomer.keeper._judge = Stateless()
    newcomer.seen.here = {A}
    life = member_of(bench.first, A).life
    found_alone(bench)
    asks = signed(Asks(bench.keeper.register.branch, B, life + 9, False, b""), FakeSigner(B))
    assert Tell(CameBack((B,))) in bench.keeper.want(Admit((asks,)))
    register = bench.keeper.register
    effects = newcomer.keeper.receive(A, Tip(register.branch, register.number, bench.keeper.core.log))
    assert newcomer.keeper.register == register
    assert not any(isinstance(each, Tell) and isinstance(each.event, CameBack) for each in effects)


def wants_something(bench: Bench) -> bool:
    """Whether it lets something be decided that it wants now."""
    register = bench.keeper.register
    peer = PEERS[5]
    asks = signed(Asks(register.branch, peer, 10_000 + register.number, False, b""), FakeSigner(peer))
    return bool(bench.keeper.want(Admit((asks,))))


def slept(bench: Bench) -> None:
    bench.run(5)
    bench.keeper.passes(bench.now)
    bench.keeper.passes(bench.now + 2 * SLEPT)
    bench.wake(bench.now + 2 * SLEPT)


def test_who_has_slept_wants_nothing_decided_until_it_hears_a_member_or_for_a_minute() -> None:
    bench = Bench()
    slept(bench)
    assert not wants_something(bench)
    bench.keeper.receive(PEERS[6], GetLog(bench.first.branch, 0))
    bench.run(LOOK - 2 * TICK)
    assert not wants_something(bench), "a stranger knows nothing of the log"
    assert not bench.keeper.core.wanted
    bench.run(5)
    assert bench.keeper.core.wanted, "what was wanted meanwhile is not forgotten: nobody may want it again"


def test_who_has_slept_and_hears_a_member_waits_for_seconds_only() -> None:
    bench = Bench()
    slept(bench)
    assert not wants_something(bench)
    bench.keeper.receive(B, GetLog(bench.first.branch, 0))  # which may have been sent before
    bench.run(2 * WAKING + 2 * TICK)
    bench.keeper.receive(B, GetLog(bench.first.branch, 0))
    assert not bench.keeper.core.wanted
    bench.run(WAKING + 2 * TICK)
    assert bench.keeper.core.wanted


def test_who_has_slept_and_hears_no_more_of_another_branch_does_not_yield_to_it() -> None:
    """It may have vanished again; alone we would decide that, and stand still."""
    bench = Bench(entries=5)
    slept(bench)
    bench.keeper.receive(C, other_branch(bench.first, C, tokens=1000))
    bench.run(RIVAL + TICK)
    assert bench.keeper._rivals.best is None
    bench.run(LOOK)
    assert wants_something(bench)
    assert not asked_to_yield(bench)


def test_what_was_held_back_after_a_sleep_is_looked_at_again() -> None:
    bench = Bench()
    slept(bench)
    bench.lose(C)
    life = member_of(bench.first, C).life
    said = [signed(replace(unheard(C, life, peer), before=bench.first.tip), FakeSigner(peer)) for peer in (A, B)]
    assert not bench.keeper.want(Remove(C, life, tuple(said), ()))
    bench.find(C)
    bench.run(LOOK + 2 * TICK)
    assert wants_something(bench)
    assert not any(isinstance(body_of(body), Remove) for body in bench.keeper.core.wanted)


@pytest.mark.parametrize("switches", [False, True])
def test_what_was_held_back_after_a_sleep_is_of_no_other_branch(switches: bool) -> None:
    """Though it may fit there."""
    bench = Bench()
    slept(bench)
    bench.keeper.want(Result(0, 1, 0, NO_DIGEST, NO_DIGEST, b"", (), ()))
    bench.keeper.expect()
    if switches:
        bench.keeper._switch(Shown(other_branch(bench.first, C, tokens=1000), C))
    else:
        found_alone(bench)
    bench.run(LOOK + 2 * TICK)
    assert bench.keeper._woke_at is None
    assert not bench.keeper.register.parts
    assert not bench.keeper.core.expects


def test_a_result_that_was_due_after_a_sleep_and_was_decided_is_due_no_more() -> None:
    bench = Bench()
    slept(bench)
    bench.keeper.expect()
    result, _ = decided(bench.first, Result(0, 1, 0, NO_DIGEST, NO_DIGEST, b"", (), ()), B, C)
    bench.keeper.receive(B, result)
    assert bench.keeper.register.parts
    bench.run(LOOK + 2 * TICK)
    assert not bench.keeper.core.expects


def test_a_result_that_is_due_after_a_sleep_is_waited_for_then() -> None:
    bench = Bench()
    slept(bench)
    bench.keeper.expect()
    bench.run(LOOK + 2 * TICK)
    assert bench.keeper.core.expects


def test_a_short_sleep_is_none() -> None:
    bench = Bench()
    bench.keeper.passes(bench.now)
    bench.keeper.passes(bench.now + SLEPT - 1.0)
    assert wants_something(bench)
