"""One peer's core, step by step: what it says to whom, what is on disk before, and when it says nothing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from shoal.protocol.base.effects import Effect, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, decode, encode
from shoal.protocol.log.core import (
    MAX_ASKED,
    MAX_REVIEWED,
    MAX_WANTED,
    MOST_AT_ONCE,
    PATIENCE,
    TAIL,
    Core,
    EntryDecided,
    LogWanted,
    Review,
)
from shoal.protocol.log.register import MAX_BODY, after, body_of, entry_digest, member_of, next_entry, voters_root
from shoal.protocol.log.trust import Byzantine, Crash
from shoal.protocol.messages.log import (
    AddVoters,
    Admit,
    Asks,
    Certificate,
    ChangeView,
    Consent,
    Decided,
    Entry,
    GetLog,
    Leave,
    Lock,
    Phase,
    Propose,
    Register,
    Request,
    Result,
    Roster,
    Seat,
    Subject,
    Tip,
    Vote,
    Voted,
    VoteFile,
    Yield,
)
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import BRANCH, PEERS, leaves, register_of
from tests.simulation.signing import FakeSigner

A, B, C, D = PEERS[:4]
SUBJECT = Subject(BRANCH, 1, 0, Phase.COMMIT, *[NO_DIGEST] * 5)


def core_of(peer: PeerId, register: Register, trust: type = Crash) -> Core:
    return Core(peer, member_of(register, peer).life, register, rules_of(trust, peer))


def sent(effects: list[Effect], kind: type) -> list[PeerId]:
    return [each.to for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def told(effects: list[Effect], kind: type) -> list[object]:
    return [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, kind)]


def newcomer(number: int) -> Admit:
    peer = PeerId(f"N{number}")
    return Admit((signed(Asks(BRANCH, peer, 7, False, b""), FakeSigner(peer)),))


class Swarm:
    """Cores in one process, on a network that loses a message if `loses` says so.

    Who is `silent` neither hears nor says anything.
    """

    def __init__(self, register: Register, trust: type = Crash, silent: str = "", refuses: str = "nobody") -> None:
        self.refuses = refuses.encode()  # no application lets its peer vote for what has this in it
        self.cores = {
            member.peer: core_of(member.peer, register, trust)
            for member in register.members
            if member.peer not in silent
        }
        self.events: dict[PeerId, list[object]] = {peer: [] for peer in self.cores}
        self.disk: dict[PeerId, list[Persist]] = {peer: [] for peer in self.cores}
        self.sent = 0
        self.loses: Callable[[], bool] = lambda: False

    def do(self, peer: PeerId, act: Callable[[Core], tuple[Core, list[Effect]]]) -> None:
        """Let `peer` act, and deliver all that comes of it."""
        queue: deque[tuple[PeerId, Callable[[Core], tuple[Core, list[Effect]]]]] = deque([(peer, act)])
        while queue:
            at, step = queue.popleft()
            self.cores[at], effects = step(self.cores[at])
            for effect in effects:
                match effect:
                    case Send(to=to, message=message):
                        self.sent += 1
                        if to in self.cores and not self.loses():
                            queue.append((to, lambda core, m=message, by=at: core.receive(by, m)))  # type: ignore[misc]
                    case Tell(event=Review(entry=entry)):
                        may = self.refuses not in entry.body
                        queue.append((at, lambda core, e=entry, y=may: core.answer(entry_digest(e), y)))  # type: ignore[misc]
                    case Tell(event=event):
                        self.events[at].append(event)
                    case Persist():
                        self.disk[at].append(effect)

    def time_out(self, peer: PeerId) -> None:
        """The timer of `peer` is due."""
        self.do(peer, timed_out)

    @property
    def numbers(self) -> list[int]:
        return [core.register.number for core in self.cores.values()]


def timed_out(core: Core) -> tuple[Core, list[Effect]]:
    """`core` once its timer was due."""
    assert core.armed is not None
    return core.fire(core.armed)


TRUSTS = (Crash, Byzantine)


@pytest.mark.parametrize("trust", TRUSTS)
def test_what_a_member_wants_is_decided_everywhere_and_then_all_is_quiet(trust: type) -> None:
    swarm = Swarm(register_of(5, 4, faults=1 if trust is Byzantine else 0), trust)
    swarm.do(PEERS[4], lambda core: core.submit(leaves_of(core)))
    assert swarm.numbers == [1] * 5
    assert [core.register.voters for core in swarm.cores.values()] == [PEERS[:3]] * 5
    assert not any(core.armed or core.wanted for core in swarm.cores.values())


def leaves_of(core: Core) -> Admit:
    """What the fourth voter would ask for; here it is passed on by another."""
    body = leaves(D, core.register)
    assert body is not None
    return body  # type: ignore[return-value]


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_dead_proposer_costs_one_view(trust: type) -> None:
    swarm = Swarm(register_of(4, 4, faults=1 if trust is Byzantine else 0), trust, silent="A")
    swarm.do(B, lambda core: core.submit(newcomer(1)))
    assert swarm.numbers == [0] * 3
    for peer in (C, D, B):
        if swarm.cores[peer].view == 0:
            swarm.time_out(peer)
    assert swarm.numbers == [1] * 3
    assert {core.view for core in swarm.cores.values()} == {1}
    swarm.do(C, lambda core: core.submit(newcomer(2)))
    assert swarm.numbers == [2] * 3  # the new proposer stays


def test_the_first_of_two_goes_on_alone_and_the_other_does_not() -> None:
    alone = Swarm(register_of(2, 2), silent="B")
    alone.do(A, lambda core: core.submit(newcomer(1)))
    assert alone.numbers == [1]
    stuck = Swarm(register_of(2, 2), silent="A")
    stuck.do(B, lambda core: core.submit(newcomer(1)))
    stuck.time_out(B)
    assert stuck.numbers == [0]


def test_a_vote_is_on_disk_before_it_leaves_and_so_is_an_entry_before_it_is_told() -> None:
    before = register_of(1, 1)
    core, effects = core_of(A, before).submit(newcomer(1))
    kinds = [each.name if isinstance(each, Persist) else type(each).__name__ for each in effects]
    told = effects.index(Tell(EntryDecided(core.log[0].entry, before, core.register)))
    assert kinds.index("vote") < kinds.index("log") < told
    core, _ = core_of(B, register_of(3, 3)).receive(A, proposal(register_of(3, 3)))
    assert core.proposal is not None
    _, effects = core.answer(entry_digest(core.proposal.entry), True)
    kinds = [each.name if isinstance(each, Persist) else type(each).__name__ for each in effects]
    assert kinds == ["vote", "Send", "Send"]


@pytest.mark.parametrize("trust", TRUSTS)
def test_what_was_said_in_a_view_is_repeated_until_it_is_decided(trust: type) -> None:
    """Each message is lost when it is sent first, and half of those that come of repeating."""
    register = register_of(4, 4, faults=1 if trust is Byzantine else 0)
    swarm = Swarm(register, trust, silent="A")
    swarm.loses = lambda: True
    for peer in (B, C, D):
        swarm.do(peer, lambda core: core.submit(newcomer(1)))
        swarm.time_out(peer)
    assert {core.view for core in swarm.cores.values()} == {1}
    swarm.loses = partial(random.Random(1).choice, (True, False))
    for _ in range(20):
        for peer in (B, C, D):
            swarm.do(peer, lambda core: (core, core.repeat()))
    assert swarm.numbers == [1] * 3
    assert {core.view for core in swarm.cores.values()} == {1}
    assert [core.repeat() for core in swarm.cores.values()] == [[]] * 3


def test_what_a_proposer_says_again_is_what_it_has_said() -> None:
    """Though it has heard more since: what it would show by that might not allow what it has proposed."""
    register = register_of(4, 4, faults=1)
    core, _ = core_of(B, register, Byzantine).submit(newcomer(1))
    core, _ = timed_out(core)
    core, _ = core.receive(C, change_of(C, register, 1))
    core, said = core.receive(D, change_of(D, register, 1))
    core, _ = core.receive(A, change_of(A, register, 1))
    assert len(core.changes) == 4
    assert proposed(core.repeat()) == proposed(said) != []


def test_who_repeats_a_vote_on_what_is_decided_is_told_so_and_who_is_late_with_one_is_not() -> None:
    swarm = Swarm(register_of(3, 3), silent="C")
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    core = swarm.cores[A]
    assert core.register.number == 1
    (subject,) = {each.certificate.subject for each in core.log}
    for voter, answered in ((B, [B]), (C, [])):
        vote = signed(Vote(subject, voter, member_of(core.register, voter).life, b""), FakeSigner(voter))
        assert sent(core.receive(voter, vote)[1], Tip) == answered


def test_who_asks_for_a_view_in_which_the_last_entry_was_decided_is_told_that_we_are_there_already() -> None:
    """What was decided in the view before came after our statement, which is not repeated, as nothing is due here."""
    register = register_of(3, 3)
    core, _ = core_of(A, register).expect()
    core, _ = timed_out(core)
    swarm = Swarm(register)
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    core, _ = core.receive(B, swarm.cores[A].log[0])
    assert (core.number, core.view, core.repeat()) == (2, 1, [])
    core, effects = core.receive(C, change_of(C, core.register, 1))
    assert sent(effects, ChangeView) == [C]
    assert sent(core.receive(C, change_of(C, core.register, 1))[1], ChangeView) == [C], (
        "it repeats itself: so it lacks ours"
    )
    behind = signed(replace(change_of(C, core.register, 1), number=1, signature=b""), FakeSigner(C))
    _, effects = core.receive(C, behind)
    assert effects == [Send(C, Tip(BRANCH, 1, ()))], "it may have said that long ago, and asks if it is behind"


def test_who_is_started_again_in_a_later_view_states_that_again() -> None:
    register = register_of(3, 3)
    file = VoteFile(member_of(register, A).life, voters_root(register), 1, 1, None, None)
    core, effects = Core.resume(A, register, (), file, rules_of(Crash, A)).start()
    assert core.view == 1
    assert sent(effects, ChangeView) == [B, C]


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.COMMIT])
def test_who_is_started_again_repeats_its_votes_of_all_phases_up_to_its_last(phase: Phase) -> None:
    """Whoever has missed the first one could not go on to the next."""
    register = register_of(4, 4, faults=1)
    entry = proposal(register).entry
    file = VoteFile(2, voters_root(register), 0, 1, Voted(0, phase, entry), None)
    _, effects = Core.resume(B, register, (), file, rules_of(Byzantine, B)).start()
    votes = [
        each.message.subject.phase for each in effects if isinstance(each, Send) and isinstance(each.message, Vote)
    ]
    assert votes == [each for each in (Phase.PREPARE, Phase.COMMIT) if each <= phase for _ in range(3)]


def test_nothing_is_repeated_to_those_that_are_down() -> None:
    core, _ = core_of(B, register_of(3, 3)).expect()
    core, _ = core.lost(C)
    core, effects = timed_out(core)
    assert sent(effects, ChangeView) == [A, C]
    assert sent(core.repeat(), ChangeView) == [A]
    core, _ = core.lost(C, is_down=False)
    assert sent(core.repeat(), ChangeView) == [A, C]


def proposed(effects: list[Effect]) -> list[Effect]:
    return [each for each in effects if isinstance(each, Send) and isinstance(each.message, Propose)]


def proposal(register: Register, by: PeerId = A, view: int = 0) -> Propose:
    """What a proposer says."""
    _, effects = core_of(by, register).submit(newcomer(1))
    found = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Propose)]
    assert isinstance(found[0], Propose)
    return signed(replace(found[0], view=view), FakeSigner(by))


def test_an_entry_that_is_not_approved_is_not_voted_for() -> None:
    core, effects = core_of(B, register_of(3, 3)).receive(A, proposal(register_of(3, 3)))
    (review,) = told(effects, Review)
    assert isinstance(review, Review)
    assert not sent(effects, Vote)
    _, effects = core.answer(entry_digest(review.entry), False)
    assert not sent(effects, Vote)
    _, effects = core.answer(entry_digest(review.entry), True)
    assert sent(effects, Vote) == [A, C]


def test_what_the_application_never_answers_about_holds_up_the_proposer_for_one_view() -> None:
    core = core_of(A, register_of(1, 1))
    core = replace(core, wanted=(encode(result(core, 1)),))  # as after an entry: what is still wanted is reviewed anew
    core, effects = core.submit(newcomer(1))
    assert told(effects, Review)
    assert not core.log
    core, _ = timed_out(core)
    assert [each.entry.body for each in core.log] == [encode(newcomer(1))]


def test_all_whom_a_proposal_would_have_admitted_go_behind_what_else_is_wanted() -> None:
    register = register_of(3, 3)
    goes = leaves(C, register)
    assert goes is not None
    wanted = (newcomer(0), newcomer(1), goes)
    core = replace(core_of(B, register), wanted=tuple(map(encode, wanted)))
    together = Admit((*newcomer(0).asks, *newcomer(1).asks))
    propose = Propose(0, next_entry(register, together), False, (), A, 1, b"")
    core, _ = core.receive(A, signed(propose, FakeSigner(A)))
    assert core.proposal is not None
    core, _ = timed_out(core)
    assert list(map(body_of, core.wanted)) == [goes, newcomer(0), newcomer(1)]


def test_what_could_not_have_been_proposed_in_a_view_does_not_go_behind() -> None:
    """The view was for what may have been decided, about which the application has not answered."""
    register = register_of(3, 3)
    lock = Lock(0, proposal(register).entry, None)
    goes = leaves(C, register)
    assert goes is not None
    wanted = (encode(goes), encode(newcomer(2)))
    core = replace(core_of(B, register), wanted=wanted)
    change = replace(change_of(A, register, 1), lock=lock)
    core, effects = core.receive(A, signed(change, FakeSigner(A)))
    assert told(effects, Review) == [Review(lock.entry, True)]
    core, _ = timed_out(core)
    assert (core.view, core.wanted) == (2, wanted)


def test_what_was_refused_is_asked_again_once_it_may_have_been_decided() -> None:
    register = register_of(3, 3)
    first = proposal(register)
    core, _ = core_of(C, register).receive(A, first)
    core, effects = core.answer(entry_digest(first.entry), False)
    assert not sent(effects, Vote)
    again = signed(replace(first, view=1, is_bound=True, peer=B, life=2), FakeSigner(B))
    core, effects = core.receive(B, again)
    assert told(effects, Review) == [Review(first.entry, True)]
    _, effects = core.answer(entry_digest(first.entry), True)
    assert sent(effects, Vote) == [A, B]


def test_of_liars_nobody_is_bound_in_the_first_view() -> None:
    register = register_of(4, 4, faults=1)
    lie = signed(replace(proposal(register), is_bound=True), FakeSigner(A))
    with pytest.raises(RemoteError, match="bound by nothing"):
        core_of(B, register, Byzantine).receive(A, lie)


def test_a_proposer_that_proposes_twice_gets_one_vote() -> None:
    register = register_of(3, 3)
    first = proposal(register)
    body = encode(newcomer(2))
    second = signed(replace(first, entry=replace(first.entry, body=body)), FakeSigner(A))
    core, _ = core_of(B, register).receive(A, first)
    core, _ = core.answer(entry_digest(first.entry), True)
    core, _ = core.receive(A, second)
    _, effects = core.answer(entry_digest(second.entry), True)
    assert not sent(effects, Vote)


def test_who_speaks_of_another_branch_is_asked_how_it_goes_there() -> None:
    register = register_of(3, 3)
    strange = proposal(register)
    strange = replace(strange, entry=replace(strange.entry, branch=NO_DIGEST))
    core, effects = core_of(B, register).receive(C, strange)
    assert sent(effects, GetLog)
    assert core.voted is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda message: replace(message, peer=B),
        lambda message: replace(message, view=1),
        lambda message: replace(message, signature=b""),
        lambda message: replace(message, entry=replace(message.entry, before=NO_DIGEST)),
        lambda message: replace(message, life=99),
    ],
)
def test_a_proposal_that_no_honest_peer_makes_names_its_sender(spoil: Callable[[Propose], Propose]) -> None:
    register = register_of(3, 3)
    with pytest.raises(RemoteError) as error:
        core_of(B, register).receive(C, spoil(proposal(register)))
    assert error.value.peer == C


def test_no_vote_counts_twice_nor_that_of_another_life() -> None:
    register = register_of(3, 3)
    core, effects = core_of(A, register).submit(newcomer(1))
    (vote, *_) = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Vote)]
    assert isinstance(vote, Vote)
    alien = signed(replace(vote, peer=B, life=99), FakeSigner(B))
    again, _ = core.receive(B, alien)
    assert again == core
    with pytest.raises(RemoteError):
        core.receive(B, replace(vote, peer=B, life=2))
    decided, _ = core.receive(B, signed(replace(vote, peer=B, life=2), FakeSigner(B)))
    assert decided.register.number == 1


def test_what_only_a_proposer_may_want_is_never_asked_of_others() -> None:
    register = register_of(3, 3)
    roster = Roster(0, (Seat(A, 1),))
    core, effects = core_of(B, register).submit(roster)
    assert (core, effects) == (core_of(B, register), [])
    core, effects = core_of(A, register).submit(roster)
    assert not sent(effects, Request)
    assert sent(effects, Propose) == [B, C]
    core, effects = core_of(A, register).receive(B, Request(BRANCH, 0, encode(roster)))
    assert (core, effects) == (core_of(A, register), [])


def test_what_does_not_fit_is_refused_at_once_and_of_others_not_kept() -> None:
    register = register_of(3, 3)
    with pytest.raises(RemoteError):
        core_of(A, register).submit(Roster(0, (Seat(PeerId("nobody"), 1),)))
    core, _ = core_of(A, register).receive(B, Request(BRANCH, 0, encode(Admit(()))))
    assert not core.wanted


def test_only_so_much_is_wanted_at_once() -> None:
    core = core_of(B, register_of(3, 3))
    for number in range(MAX_WANTED + 5):
        core, _ = core.receive(C, Request(BRANCH, 0, encode(newcomer(number))))
    assert (len(core.offered), core.wanted, core.armed) == (MAX_WANTED, (), None)
    for number in range(MAX_WANTED):
        core, _ = core.submit(newcomer(100 + number))  # what the peer itself wants has room of its own
    core, _ = core.submit(newcomer(300))


def test_of_each_who_asks_one_wish_is_kept() -> None:
    core = core_of(B, register_of(3, 3))
    peer = PeerId("N")
    for life in range(7, 20):
        asks = signed(Asks(BRANCH, peer, life, False, b""), FakeSigner(peer))
        core, _ = core.receive(C, Request(BRANCH, 0, encode(Admit((asks,)))))
    assert len(core.offered) == 1


def test_only_voters_ask_for_what_nobody_has_signed() -> None:
    register = register_of(4, 3)
    core = core_of(A, register)
    leave = leaves(C, register)
    assert leave is not None
    yields = Yield(digest("another branch"), 1)
    for asker, body, is_heard in (
        (PeerId("nobody"), newcomer(1), True),
        (PeerId("nobody"), leave, True),
        (PeerId("nobody"), yields, False),
        (D, yields, False),  # it has no vote, so nobody asks whom it has met
        (B, yields, True),
    ):
        _, effects = core.receive(asker, Request(BRANCH, 0, encode(body)))
        assert len(told(effects, Review)) == is_heard


def test_of_what_was_asked_and_refused_only_so_much_is_kept_and_that_is_asked_again() -> None:
    core = core_of(A, register_of(3, 3))
    for tokens in range(1, MAX_REVIEWED + 10):
        core, effects = core.receive(B, Request(BRANCH, 0, encode(Yield(digest("another branch"), tokens))))
        (review,) = told(effects, Review)
        assert isinstance(review, Review)
        core, _ = core.answer(entry_digest(review.entry), False)
    assert (len(core.reviewed), len(core.refused), core.offered) == (MAX_REVIEWED, MAX_REVIEWED, ())
    for tokens, is_asked in ((MAX_REVIEWED, False), (1, True)):
        _, effects = core.receive(B, Request(BRANCH, 0, encode(Yield(digest("another branch"), tokens))))
        assert len(told(effects, Review)) == is_asked


def test_what_the_application_does_not_want_holds_up_nothing() -> None:
    swarm = Swarm(register_of(3, 3), refuses="N1")
    for peer in swarm.cores:
        swarm.do(peer, lambda core: core.receive(C, Request(BRANCH, 0, encode(newcomer(1)))))
    assert not any(core.wanted or core.armed for core in swarm.cores.values())
    swarm.do(B, lambda core: core.submit(newcomer(2)))
    assert swarm.numbers == [1, 1, 1]


def test_all_who_wait_are_admitted_by_one_entry() -> None:
    swarm = Swarm(register_of(3, 3))
    for number in range(5):
        swarm.cores[B], _ = swarm.cores[B].submit(newcomer(number))
    swarm.time_out(B)
    assert swarm.numbers == [1, 1, 1]
    assert len(swarm.cores[A].register.members) == 8


def change_of(peer: PeerId, register: Register, view: int) -> ChangeView:
    life = member_of(register, peer).life
    change = ChangeView(BRANCH, register.number + 1, view, voters_root(register), None, peer, life, b"")
    return signed(change, FakeSigner(peer))


def test_patience_doubles_while_others_give_up_too() -> None:
    register = register_of(3, 3)
    core, effects = core_of(B, register).expect()
    waits = []
    for view in range(4):
        waits += [each.after for each in effects if isinstance(each, Wake)]
        core, effects = timed_out(core)
        core, _ = core.receive(C, change_of(C, register, view + 1))
    assert waits == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
    assert core.fire(Timer("log", "view", 1, "0")) == (core, [])


def test_who_asks_for_a_view_that_others_have_given_up_is_told_what_they_have_asked_for() -> None:
    """It has missed that, and they may want nothing themselves."""
    register = register_of(3, 3)
    ahead, _ = core_of(B, register).expect()
    for _ in range(2):
        ahead, effects = timed_out(ahead)
        assert sent(effects, ChangeView) == [A, C]
    (ours,) = ahead.changes
    assert ours.view == 1
    late = signed(
        ChangeView(BRANCH, 1, 0, voters_root(register), None, A, member_of(register, A).life, b""), FakeSigner(A)
    )
    ahead, effects = ahead.receive(A, late)
    assert [each for each in effects if isinstance(each, Send)] == [Send(A, ours)]
    same = signed(replace(late, view=1, signature=b""), FakeSigner(A))
    assert ours not in [each.message for each in ahead.receive(A, same)[1] if isinstance(each, Send)]


def test_the_time_of_a_view_counts_from_when_it_has_begun() -> None:
    """Who has asked for it early would leave it just as the others come, and miss each view in turn."""
    register = register_of(3, 3)
    core, _ = core_of(C, register).expect()
    core, _ = timed_out(core)
    early = core.armed
    core, effects = core.receive(A, change_of(A, register, 1))
    (wake,) = [each for each in effects if isinstance(each, Wake)]
    assert (wake.after, wake.timer) == (2 * PATIENCE, core.armed)
    assert not [each for each in core.receive(B, change_of(B, register, 1))[1] if isinstance(each, Wake)], "once only"
    assert early is not None
    assert core.fire(early) == (core, [])
    assert timed_out(core)[0].view == 2


def test_who_hears_nobody_asks_for_one_view_again_and_again() -> None:
    core, _ = core_of(B, register_of(3, 3)).expect()
    for _ in range(4):
        core, effects = timed_out(core)
        assert sent(effects, ChangeView) == [A, C]
    assert core.view == 1


def test_what_is_on_disk_already_is_not_written_again() -> None:
    """A run without a quorum would fill the disk, a record each time that its timer fires."""
    core, _ = core_of(B, register_of(3, 3)).receive(A, proposal(register_of(3, 3)))
    assert core.proposal is not None
    core, effects = core.answer(entry_digest(core.proposal.entry), True)
    written = []
    for _ in range(4):
        core, effects = timed_out(core)
        assert sent(effects, ChangeView) == [A, C]
        written += [each.record for each in effects if isinstance(each, Persist)]
    assert written == [core.vote_file()]
    core, _ = core.receive(C, change_of(C, core.register, 1))
    core, effects = timed_out(core)
    assert [each.record for each in effects if isinstance(each, Persist)] == [core.vote_file()], "another view is"


def test_an_idle_log_is_quiet() -> None:
    _, effects = core_of(A, register_of(3, 3)).start()
    assert (sent(effects, GetLog), sent(effects, ChangeView)) == ([B], [])
    swarm = Swarm(register_of(3, 3))
    for peer in swarm.cores:
        swarm.do(peer, Core.start)
    before = swarm.sent
    for peer in swarm.cores:
        swarm.time_out(peer)
    assert swarm.sent == before
    assert not any(core.armed for core in swarm.cores.values())


def test_who_is_behind_asks_and_is_told_in_order() -> None:
    swarm = Swarm(register_of(4, 3), silent="D")
    for number in range(3):
        swarm.do(A, lambda core, n=number: core.submit(newcomer(n)))  # type: ignore[misc]
    late = core_of(D, register_of(4, 3))
    late, effects = late.hear_of(B, 3)
    assert sent(effects, GetLog) == [B]
    _, effects = swarm.cores[B].receive(D, GetLog(BRANCH, 0))
    for each in effects:
        assert isinstance(each, Send)
        late, _ = late.receive(B, each.message)  # type: ignore[arg-type]
    assert late.register == swarm.cores[B].register


def result(core: Core, round: int) -> Result:
    """Of a round that counts nobody."""
    base = core.register.parts[0].result if core.register.parts else 0
    return Result(0, round, base, NO_DIGEST, NO_DIGEST, b"", (), ())


def test_a_peer_that_is_too_far_behind_is_left_to_the_application() -> None:
    swarm = Swarm(register_of(2, 1))
    for number in range(TAIL + 1):
        swarm.do(A, lambda core, round=number + 1: core.submit(result(core, round)))  # type: ignore[misc]
    core, effects = swarm.cores[A].receive(B, GetLog(BRANCH, 0))
    assert effects == [Tell(LogWanted(B)), Send(B, Tip(BRANCH, TAIL + 1, ()))]
    assert len(core.log) == TAIL


def test_who_is_behind_by_more_than_one_answer_asks_on() -> None:
    swarm = Swarm(register_of(3, 2), silent="C")
    for number in range(2 * MOST_AT_ONCE + 5):
        swarm.do(A, lambda core, round=number + 1: core.submit(result(core, round)))  # type: ignore[misc]
    swarm.cores[C], swarm.events[C], swarm.disk[C] = core_of(C, register_of(3, 2)), [], []
    swarm.do(C, lambda core: core.hear_of(A, 1))
    assert len(set(swarm.numbers)) == 1
    assert swarm.cores[C].asked == 0


def test_long_entries_are_told_in_several_answers_each_of_which_can_be_sent() -> None:
    entry = Entry(BRANCH, 1, NO_DIGEST, bytes(MAX_BODY))
    log = tuple(Decided(replace(entry, number=number), Certificate(SUBJECT, ())) for number in range(1, 70))
    core = replace(core_of(A, register_of(3, 3)), register=replace(register_of(3, 3), number=69), log=log)
    _, effects = core.receive(B, GetLog(BRANCH, 0))
    (tip,) = [each.message for each in effects if isinstance(each, Send)]
    assert isinstance(tip, Tip)
    assert 1 < len(tip.entries) < MOST_AT_ONCE
    assert len(encode(tip)) <= MAX_CONTROL_FRAME // 2, "certificates come with them"


def test_who_has_nothing_to_give_is_not_asked_again_at_once() -> None:
    core, effects = core_of(C, register_of(3, 3)).hear_of(A, 5)
    core, effects = core.receive(A, Tip(BRANCH, 5, ()))
    assert effects == []
    core, effects = timed_out(core)
    assert sent(effects, GetLog) == [B]


def test_a_malformed_wish_names_who_sent_it() -> None:
    with pytest.raises(RemoteError) as error:
        core_of(C, register_of(3, 3)).receive(A, Request(BRANCH, 0, b"nonsense"))
    assert error.value.peer == A


def test_who_asks_in_vain_asks_another() -> None:
    core, effects = core_of(C, register_of(3, 3)).hear_of(A, 5)
    assert sent(effects, GetLog) == [A]
    asked = []
    for _ in range(3):
        core, effects = timed_out(core)
        asked += sent(effects, GetLog)
    assert asked == [B, A, B]
    assert core.view == 0


def test_a_wish_of_one_who_is_behind_brings_it_what_it_lacks() -> None:
    swarm = Swarm(register_of(4, 3), silent="D")
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    _, effects = swarm.cores[B].receive(D, Request(BRANCH, 0, encode(newcomer(1))))
    assert sent(effects, Tip) == [D]


def test_who_has_left_is_told_so() -> None:
    swarm = Swarm(register_of(4, 3))
    body = leaves_of_member(D, swarm.cores[D])
    swarm.do(D, lambda core: core.submit(body))
    assert swarm.numbers == [1] * 4
    assert not swarm.cores[D].wanted


def leaves_of_member(peer: PeerId, core: Core) -> Leave:
    asks = Asks(BRANCH, peer, core.life, True, b"")
    return Leave(signed(asks, FakeSigner(peer)))


def test_who_hears_of_no_decision_deposes_nobody() -> None:
    swarm = Swarm(register_of(3, 3), silent="C")
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    register = register_of(3, 3)
    core, effects = swarm.cores[B].receive(C, change_of(C, register, 1))
    assert core.view == 0
    assert sent(effects, Tip) == [C]


def test_who_has_decided_follows_a_quorum_that_had_not_heard_of_it() -> None:
    """Views stay over entries: the others vote in no lower one any more."""
    swarm = Swarm(register_of(3, 3), silent="C")
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    register, core = register_of(3, 3), swarm.cores[B]
    for peer in (A, C):
        core, _ = core.receive(peer, change_of(peer, register, 1))
    assert (core.number, core.view) == (2, 1)


def test_a_restarted_proposer_of_a_later_view_hands_it_on() -> None:
    register = register_of(3, 3)
    file = VoteFile(2, voters_root(register), 1, 1, None, None)
    core, effects = Core.resume(B, register, (), file, rules_of(Crash, B)).start()
    assert core.view == 2
    assert sent(effects, ChangeView) == [A, C]


def test_a_lock_on_what_is_lost_binds_only_if_it_may_be_decided() -> None:
    """A has voted for an entry, whose bytes its machine then lost; the application refuses it everywhere."""
    register = register_of(3, 3)
    entry = proposal(register).entry
    lock = Lock(0, entry, None)
    swarm = Swarm(register, refuses="N1")
    swarm.cores[A] = replace(swarm.cores[A], voted=Voted(0, Phase.COMMIT, entry), lock=lock)
    swarm.do(A, Core.start)
    swarm.do(B, lambda core: core.submit(newcomer(2)))
    for _ in range(6):
        for peer in swarm.cores:
            if swarm.cores[peer].armed is not None and swarm.numbers == [0, 0, 0]:
                swarm.time_out(peer)
    assert swarm.numbers == [1, 1, 1]
    assert PeerId("N2") in [member.peer for member in swarm.cores[A].register.members]


def test_a_certificate_that_lacks_a_quorum_is_refused() -> None:
    swarm = Swarm(register_of(3, 3))
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    decided = swarm.cores[A].log[0]
    proofs = decided.certificate.proofs
    for spoiled in (proofs[:1], (proofs[0], proofs[0]), (replace(proofs[0], signature=b""), *proofs[1:])):
        wrong = Decided(decided.entry, replace(decided.certificate, proofs=spoiled))
        with pytest.raises(RemoteError):
            core_of(C, register_of(3, 3)).receive(A, wrong)
    right, _ = core_of(C, register_of(3, 3)).receive(A, decided)
    assert right.register.number == 1


def test_a_restart_goes_on_from_the_disk() -> None:
    swarm = Swarm(register_of(3, 3), silent="BC")
    swarm.do(A, lambda core: core.submit(newcomer(1)))
    before = swarm.cores[A]
    (file,) = [each.record for each in swarm.disk[A] if each.name == "vote"]
    assert isinstance(file, VoteFile)
    again = Core.resume(A, before.register, (), file, before.rules)
    assert (again.voted, again.lock, again.view) == (before.voted, before.lock, before.view)
    again, effects = again.start()
    assert sent(effects, Vote) == [B, C]
    again, effects = again.submit(newcomer(2))
    assert not sent(effects, Propose)  # it has proposed another entry in this view, and says nothing else


def test_a_vote_file_of_earlier_voters_says_nothing_of_views() -> None:
    register = register_of(3, 3)
    file = VoteFile(1, digest("other voters"), 7, 1, None, None)
    assert Core.resume(A, register, (), file, rules_of(Crash, A)).view == 0
    kept = replace(file, voters=voters_root(register))
    assert Core.resume(A, register, (), kept, rules_of(Crash, A)).view == 7


def test_of_liars_a_proposal_in_a_later_view_needs_statements() -> None:
    register = register_of(4, 4, faults=1)
    core = core_of(C, register, Byzantine)
    body = proposal(register)
    later = signed(replace(body, view=1, peer=B, life=2), FakeSigner(B))
    with pytest.raises(RemoteError, match="do not allow"):
        core.receive(B, later)


def test_one_liar_cannot_make_others_change_their_view() -> None:
    register = register_of(4, 4, faults=1)
    change = ChangeView(BRANCH, 1, 9, voters_root(register), None, D, 4, b"")
    core, effects = core_of(C, register, Byzantine).receive(D, signed(change, FakeSigner(D)))
    assert (core.view, sent(effects, ChangeView)) == (0, [])
    second = signed(replace(change, peer=B, life=2), FakeSigner(B))
    core, effects = core.receive(B, second)
    assert core.view == 9
    crash, _ = core_of(C, register_of(4, 4)).receive(
        D, signed(replace(change, voters=voters_root(register_of(4, 4))), FakeSigner(D))
    )
    assert crash.view == 9


def test_the_core_is_a_value() -> None:
    register = register_of(3, 3)
    one, _ = core_of(A, register).submit(newcomer(1))
    other, _ = core_of(A, register).submit(newcomer(1))
    assert one == other
    assert hash(one) == hash(other)
    assert decode(encode(after(register, one.voted.entry, one.rules)))  # type: ignore[union-attr]
    assert one.voted is not None
    assert one.voted.phase is Phase.COMMIT


@pytest.mark.parametrize(("consents", "is_asked_for"), [(1, True), (5, False)])
def test_a_long_body_goes_to_the_voters_once_as_a_proposal(consents: int, is_asked_for: bool) -> None:
    """Of 32 voters each would get it 32 times, made as it is of what they have."""
    register = register_of(8, 3)
    said = [
        Consent(BRANCH, register.tip, peer, member_of(register, peer).life, b"") for peer in PEERS[3 : 3 + consents]
    ]
    body = AddVoters(tuple(signed(each, FakeSigner(each.peer)) for each in said), ())
    core, effects = core_of(A, register).submit(body)
    assert sent(effects, Request) == ([B, C] if is_asked_for else [])
    assert {B, C} <= set(sent(effects, Propose))
    assert core.wanted == (encode(body),)


def test_what_one_peer_asks_for_is_short() -> None:
    peer, branch = PeerId("12D3KooW" + "x" * 44), digest("branch", b"")
    for body in (
        Admit((Asks(branch, peer, 1 << 41, False, bytes(64)),)),
        Leave(Asks(branch, peer, 1 << 41, True, bytes(64))),
    ):
        assert len(encode(Request(branch, 1 << 20, encode(body)))) <= MAX_ASKED
