"""The membership core, message by message: what it answers, what it believes, what it refuses."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from shoal.protocol.base.effects import Effect, Event, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message
from shoal.protocol.membership.members import NamesakeSeen, PeerDown, PeerSuspected, PeerUp, State, StatusChanged
from shoal.protocol.membership.membership import EARLIER_LIVES, Membership
from shoal.protocol.membership.probe import MAX_FOR_ONE, MAX_OPEN
from shoal.protocol.membership.vetting import MAX_ADDRESS, MAX_ADDRESSES, MAX_AHEAD, MAX_COUNT, MAX_NEWS, MAX_WORD
from shoal.protocol.messages.membership import (
    Ack,
    AckFor,
    Claim,
    Entry,
    Gossip,
    News,
    Ping,
    PingFor,
    Row,
    RunStatus,
    Summary,
)
from shoal.protocol.messages.node import Refused
from tests.simulation.signing import FakeSigner

ME, A, B, C, D = PeerId("me"), PeerId("a"), PeerId("b"), PeerId("c"), PeerId("d")
STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")
NOTHING = News((), ())


def entry(peer: PeerId, incarnation: int = 0, version: int = 0, *, left: bool = False, round: int = 0) -> Entry:
    status = dataclasses.replace(STATUS, round=round)
    return signed(Entry(peer, incarnation, version, (f"/dns4/{peer}",), status, left, b""), FakeSigner(peer))


def member(*others: PeerId) -> Membership:
    """A started core that knows `others`."""
    core = Membership(ME, ("/dns4/me",), STATUS, FakeSigner(ME), random.Random(1))
    core.start(0.0, [])
    for other in others:
        core.receive(0.0, other, Gossip(entry(other), NOTHING, True))
    return core


def claims(*items: Claim) -> News:
    return News((), items)


def sent(effects: list[Effect], kind: type[Message]) -> list[tuple[PeerId, Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and type(e.message) is kind]


def events(effects: list[Effect]) -> list[Event]:
    return [effect.event for effect in effects if isinstance(effect, Tell)]


def timers(effects: list[Effect], name: str) -> list[Wake]:
    return [effect for effect in effects if isinstance(effect, Wake) and effect.timer.name == name]


# -- introductions --------------------------------------------------------------------------------------------


def test_who_speaks_is_known_from_then_on() -> None:
    core = member()
    effects = core.receive(1.0, A, Ping(entry(A), 7, NOTHING))
    assert events(effects) == [PeerUp(A, ("/dns4/a",))]
    [(to, ack)] = sent(effects, Ack)
    assert to == A
    assert isinstance(ack, Ack)
    assert ack.number == 7
    assert ack.entry == core.entry(ME)
    assert core.alive() == [A]
    assert core.status(A) == STATUS


def test_a_seed_that_was_not_there_at_the_start_is_asked_again() -> None:
    """Else those who found each other first would stay an island, if nobody else can dial them."""
    core = Membership(ME, (), STATUS, FakeSigner(ME), random.Random(1))
    effects = core.start(0.0, [A, B])
    core.receive(0.5, A, Gossip(entry(A), NOTHING, True))
    (wake,) = timers(effects, "sync")
    assert [to for to, _ in sent(core.fire(1.0, wake.timer), Summary)] == [A, B]


def test_start_asks_seeds_but_never_itself() -> None:
    core = Membership(ME, (), STATUS, FakeSigner(ME), random.Random(1))
    effects = core.start(0.0, [ME, A])
    assert [to for to, _ in sent(effects, Summary)] == [A]


def test_a_summary_is_answered_with_what_its_sender_lacks() -> None:
    core = member(A, B)
    effects = core.receive(1.0, C, Summary(entry(C), (Row(A, 0, 0, False),), ask=True))
    [(_, gossip)] = sent(effects, Gossip)
    assert isinstance(gossip, Gossip)
    assert gossip.news.entries == (entry(B),)
    [(_, summary)] = sent(effects, Summary)
    assert isinstance(summary, Summary)
    assert not summary.ask
    assert {row.peer for row in summary.rows} == {A, B, C}


def test_a_peer_that_forgot_its_earlier_life_is_shown_it() -> None:
    core = member(A)
    core.receive(1.0, A, Gossip(entry(A, incarnation=2, version=9), NOTHING, True))
    effects = core.receive(2.0, A, Ping(entry(A), 1, NOTHING))
    [(_, ack)] = sent(effects, Ack)
    assert isinstance(ack, Ack)
    assert ack.news.entries == (entry(A, incarnation=2, version=9),)


def test_shown_its_earlier_life_it_takes_a_higher_incarnation() -> None:
    core = member(A)
    earlier = entry(ME, incarnation=4, version=2)
    core.receive(1.0, A, Gossip(entry(A), News((earlier,), ()), True))
    own = core.entry(ME)
    assert own is not None
    assert own.incarnation == 5


def test_a_status_is_told_once_and_only_if_it_is_new() -> None:
    core = member(A)
    effects = core.receive(1.0, A, Gossip(entry(A, version=1, round=3), NOTHING, True))
    assert events(effects) == [StatusChanged(A)]
    assert events(core.receive(1.0, A, Gossip(entry(A, version=1, round=3), NOTHING, True))) == []


def test_our_new_status_goes_out_at_once_and_an_unchanged_one_never() -> None:
    core = Membership(ME, (), STATUS, FakeSigner(ME), random.Random(1))
    core.start(0.0, [])
    [soon] = timers(core.receive(0.0, A, Gossip(entry(A), NOTHING, True)), "gossip")
    core.fire(soon.after, soon.timer)
    assert core.set_status(0.1, STATUS) == []
    later = dataclasses.replace(STATUS, round=1)
    [soon] = timers(core.set_status(0.1, later), "gossip")
    assert soon.after < 0.05
    [(to, gossip)] = sent(core.fire(0.1 + soon.after, soon.timer), Gossip)
    assert isinstance(gossip, Gossip)
    assert (to, gossip.entry.status) == (A, later)


def test_after_leaving_it_is_silent() -> None:
    core = member(A, B)
    effects = core.leave(1.0)
    assert {to for to, _ in sent(effects, Gossip)} == {A, B}
    assert all(isinstance(m, Gossip) and m.entry.left for _, m in sent(effects, Gossip))
    assert core.receive(2.0, A, Ping(entry(A), 1, NOTHING)) == []
    assert core.doubt(2.0, A) == []
    assert core.leave(2.0) == []


def test_whoever_was_asked_and_has_not_answered_hears_the_goodbye() -> None:
    """It may know of us already, and would take us for lost."""
    core = Membership(ME, (), STATUS, FakeSigner(ME), random.Random(1))
    core.start(0.0, [A])
    core.link_up(0.5, B)
    core.receive(0.6, B, Gossip(entry(B), NOTHING, True))
    core.link_up(0.7, C)
    core.receive(0.8, B, Gossip(entry(B), News((entry(D),), ()), True))
    goodbyes = sent(core.leave(1.0), Gossip)
    assert sorted(to for to, _ in goodbyes) == [A, B, C, D]
    assert all(isinstance(gossip, Gossip) and gossip.entry.left for _, gossip in goodbyes)
    told = {to for to, gossip in goodbyes if isinstance(gossip, Gossip) and gossip.news.entries}
    assert told <= {B, D}, "a stranger hears of nobody else"


def test_who_comes_back_is_alive_again_to_all_who_heard_its_goodbye() -> None:
    core, other = member(A), Membership(A, (), STATUS, FakeSigner(A), random.Random(2))
    other.start(0.0, [ME])
    for _, message in sent(core.leave(1.0), Gossip):
        other.receive(1.1, ME, message)
    assert other.gone() == [ME]
    later = dataclasses.replace(STATUS, round=7)
    for _, message in sent(core.come_back(5.0, later), Summary):
        other.receive(5.1, ME, message)
    assert other.is_alive(ME)
    assert other.status(ME) == later
    assert core.come_back(6.0, STATUS) == []


def test_who_was_suspected_before_a_goodbye_is_judged_after_it() -> None:
    core = member(A, B)
    core.doubt(1.0, A)
    core.leave(1.1)
    core.set_addresses(2.0, ("/dns4/elsewhere",))
    [verdict] = timers(core.come_back(5.0, STATUS), "verdict")
    assert events(core.fire(5.0 + verdict.after, verdict.timer)) == [PeerDown(A)]
    own = core.entry(ME)
    assert own is not None
    assert own.addresses == ("/dns4/elsewhere",)


def test_what_earlier_lives_left_behind_is_outdone_but_not_a_living_namesake() -> None:
    core = member(A)
    told = []
    for _ in range(3 * EARLIER_LIVES):
        own = core.entry(ME)
        assert own is not None
        stranger = entry(ME, own.incarnation + 1, 7)  # whoever holds our key can sign it
        told += events(core.receive(1.0, A, Gossip(entry(A), News((stranger,), ()), True)))
    assert told == [NamesakeSeen()]
    own = core.entry(ME)
    assert own is not None
    assert own.incarnation == 2 * EARLIER_LIVES


# -- suspicion ------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_checked_every_way_and_settled_in_time() -> None:
    core = member(A, B, C)
    effects = core.doubt(1.0, A)
    assert events(effects) == [PeerSuspected(A)]
    assert [to for to, _ in sent(effects, Ping)] == [A]
    assert sorted(to for to, _ in sent(effects, PingFor)) == [B, C]
    [verdict] = timers(effects, "verdict")
    assert events(core.fire(1.0 + verdict.after, verdict.timer)) == [PeerDown(A)]
    assert core.lost_since(0.0) == [A]
    assert core.lost_since(100.0) == []


def test_who_listens_nowhere_any_more_is_dead_at_once_and_lives_if_it_says_so() -> None:
    core = member(A, B, C)
    assert core.ended(1.0, A) == [], "its connection is there"
    core.doubt(1.0, A)
    assert events(core.ended(1.01, A)) == [PeerDown(A)]
    assert core.state(A) is State.DEAD
    behind = dataclasses.replace(STATUS, reachability="nat")
    core.receive(
        1.5, B, Gossip(signed(dataclasses.replace(entry(B, 0, 9), status=behind), FakeSigner(B)), NOTHING, True)
    )
    core.doubt(1.6, B)
    assert core.ended(1.61, B) == [], "a router may have refused"
    effects = core.receive(2.0, A, Gossip(entry(A, incarnation=1), NOTHING, True))
    assert events(effects) == [PeerUp(A, ("/dns4/a",))]


@pytest.mark.parametrize("directly", [True, False])
def test_an_answer_to_a_check_ends_it(directly: bool) -> None:
    core = member(A, B)
    effects = core.doubt(1.0, A)
    [verdict] = timers(effects, "verdict")
    [(_, ping)] = sent(effects, Ping)
    assert isinstance(ping, Ping)
    answer = Ack(entry(A), ping.number, NOTHING) if directly else AckFor(entry(B), ping.number, entry(A), NOTHING)
    assert events(core.receive(1.1, A if directly else B, answer)) == [PeerUp(A, ("/dns4/a",))]
    assert core.fire(1.0 + verdict.after, verdict.timer) == []
    assert core.state(A) is State.ALIVE


def test_an_old_answer_does_not_end_a_later_check() -> None:
    core = member(A)
    effects = core.doubt(1.0, A)
    [(_, old)] = sent(effects, Ping)
    [verdict] = timers(effects, "verdict")
    core.fire(1.0 + verdict.after, verdict.timer)
    core.receive(5.0, A, Gossip(entry(A, incarnation=1), NOTHING, True))
    core.doubt(6.0, A)
    assert isinstance(old, Ping)
    core.receive(6.1, A, Ack(entry(A, incarnation=1), old.number, NOTHING))
    assert core.is_suspect(A)


def test_nobody_dies_by_hearsay() -> None:
    core = member(A, B)
    effects = core.receive(1.0, B, Gossip(entry(B), claims(Claim(A, 0, True, B)), True))
    assert events(effects) == [PeerSuspected(A)]
    assert [to for to, _ in sent(effects, Ping)] == [A]
    core.receive(1.1, B, Gossip(entry(B), claims(Claim(A, 0, True, C)), True))
    assert core.is_alive(A)


def test_a_death_after_a_public_suspicion_is_believed() -> None:
    core = member(A, B)
    core.receive(1.0, B, Gossip(entry(B), claims(Claim(A, 0, False, B)), True))
    effects = core.receive(5.0, B, Gossip(entry(B), claims(Claim(A, 0, True, B)), True))
    assert events(effects) == [PeerDown(A)]


def test_independent_accusers_shorten_the_suspicion() -> None:
    core = member(*(PeerId(f"p{index}") for index in range(8)), A, B, C)
    waits = []
    for accuser in (B, B, C, PeerId("p0"), PeerId("p1")):
        effects = core.receive(1.0, accuser, Gossip(entry(accuser), claims(Claim(A, 0, False, accuser)), True))
        waits += [wake.after for wake in timers(effects, "verdict")]
    assert len(waits) == 3
    assert waits == sorted(waits, reverse=True)


def test_claims_about_another_incarnation_are_ignored() -> None:
    core = member(A, B)
    core.receive(1.0, A, Gossip(entry(A, incarnation=2), NOTHING, True))
    for incarnation in (0, 1, 3):
        for dead in (False, True):
            assert events(core.receive(1.0, B, Gossip(entry(B), claims(Claim(A, incarnation, dead, B)), True))) == []
    assert core.state(A) is State.ALIVE


def test_an_accused_refutes_and_answers_with_the_refutation() -> None:
    core = member(A)
    effects = core.receive(1.0, A, Ping(entry(A), 1, claims(Claim(ME, 0, False, A))))
    [(_, ack)] = sent(effects, Ack)
    assert isinstance(ack, Ack)
    assert ack.entry.incarnation == 1
    core.receive(1.0, A, Ping(entry(A), 2, claims(Claim(ME, 0, True, A))))
    own = core.entry(ME)
    assert own is not None
    assert own.incarnation == 1  # the claim was stale


def test_a_suspect_hears_of_it_from_whoever_speaks_with_it() -> None:
    core = member(A, B)
    core.receive(1.0, B, Gossip(entry(B), claims(Claim(A, 0, False, B)), True))
    [(_, ack)] = sent(core.receive(1.1, A, Ping(entry(A), 1, NOTHING)), Ack)
    assert isinstance(ack, Ack)
    assert ack.news.claims == (Claim(A, 0, False, ME),)


# -- stops ----------------------------------------------------------------------------------------------------


def test_a_verdict_that_comes_late_waits_for_what_was_not_read_yet() -> None:
    core = member(A)
    [verdict] = timers(core.doubt(1.0, A), "verdict")
    effects = core.fire(1.0 + verdict.after + 0.4, verdict.timer)
    assert events(effects) == []
    [again] = timers(effects, "verdict")
    assert core.fire(1.0 + verdict.after + 0.4, verdict.timer) == []  # stale
    assert events(core.fire(1.0 + verdict.after + 0.4 + again.after, again.timer)) == [PeerDown(A)]


def test_a_jumped_clock_gives_every_suspect_its_whole_time_again_and_asks_anew() -> None:
    core = member(A, B)
    effects = core.receive(1.0, B, Gossip(entry(B), claims(Claim(A, 0, False, B)), True))
    [verdict] = timers(effects, "verdict")
    effects = core.fire(1000.0, verdict.timer)
    assert events(effects) == []
    assert [wake.after for wake in timers(effects, "verdict")] == [verdict.after]
    assert [to for to, _ in sent(effects, Ping)] == [A]
    assert len(sent(effects, Summary)) == 1


def test_stale_timers_do_nothing() -> None:
    core = member(A)
    assert core.fire(1.0, Timer("membership", "verdict", 999, A)) == []
    assert core.fire(1.0, Timer("membership", "no such timer", 1)) == []


# -- what is refused ------------------------------------------------------------------------------------------

FORGED = dataclasses.replace(entry(C), addresses=("/dns4/evil",))
SWOLLEN = signed(dataclasses.replace(entry(C), addresses=("/x",) * (MAX_ADDRESSES + 1)), FakeSigner(C))
LENGTHY = signed(dataclasses.replace(entry(C), addresses=("x" * (MAX_ADDRESS + 1),)), FakeSigner(C))
WORDY = signed(
    dataclasses.replace(entry(C), status=dataclasses.replace(STATUS, phase="x" * (MAX_WORD + 1))), FakeSigner(C)
)
BAD: dict[str, Callable[[], Message]] = {
    "in another's name": lambda: Ping(entry(B), 1, NOTHING),
    "own entry forged": lambda: Ping(dataclasses.replace(entry(A, version=1), left=True), 1, NOTHING),
    "forged addresses": lambda: Gossip(entry(A), News((FORGED,), ()), True),
    "forged goodbye": lambda: Gossip(entry(A), News((dataclasses.replace(entry(B, version=1), left=True),), ()), True),
    "forged own past": lambda: Gossip(entry(A), News((dataclasses.replace(entry(ME, 9), signature=b"x"),), ()), True),
    "forged answer": lambda: AckFor(entry(A), 1, FORGED, NOTHING),
    "too many addresses": lambda: Gossip(entry(A), News((SWOLLEN,), ()), True),
    "a lengthy address": lambda: Gossip(entry(A), News((LENGTHY,), ()), True),
    "a wordy status": lambda: Gossip(entry(A), News((WORDY,), ()), True),
    "absurd incarnation": lambda: Gossip(entry(A, MAX_COUNT + 1), NOTHING, True),
    "absurd claim": lambda: Gossip(entry(A), claims(Claim(B, MAX_AHEAD + 1, True, A)), True),
    "absurd claim about us": lambda: Gossip(entry(A), claims(Claim(ME, MAX_AHEAD + 1, True, A)), True),
    "absurd row": lambda: Summary(entry(A), (Row(B, MAX_AHEAD + 1, 0, True),), ask=True),
    "too many claims": lambda: Gossip(entry(A), claims(*[Claim(B, 0, False, A)] * (MAX_NEWS + 1)), True),
    "too many entries": lambda: Gossip(entry(A), News((entry(B),) * (MAX_NEWS + 1), ()), True),
    "not for membership": lambda: Refused("no"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_must_not_be_is_refused_and_changes_nothing(kind: str) -> None:
    core = member(A, B)
    before = (core.alive(), core.entry(A), core.entry(B), core.entry(ME), core.state(C), core.is_suspect(B))
    with pytest.raises(RemoteError) as caught:
        core.receive(1.0, A, BAD[kind]())
    assert caught.value.peer == A
    assert before == (
        core.alive(), core.entry(A), core.entry(B), core.entry(ME), core.state(C), core.is_suspect(B)
    )  # fmt: skip


def test_an_answer_from_somebody_else_is_refused() -> None:
    core = member(A, B)
    [(_, ping)] = sent(core.doubt(1.0, A), Ping)
    assert isinstance(ping, Ping)
    with pytest.raises(RemoteError, match="for another peer"):
        core.receive(1.1, B, Ack(entry(B), ping.number, NOTHING))
    with pytest.raises(RemoteError, match="for another peer"):
        core.receive(1.1, B, AckFor(entry(B), ping.number, entry(C), NOTHING))
    assert core.is_suspect(A)


def test_one_asker_cannot_use_up_a_helpers_errands() -> None:
    core = member(A, B, C)
    asked = [core.receive(1.0, A, PingFor(entry(A), number, C, NOTHING)) for number in range(MAX_OPEN)]
    assert sum(bool(sent(effects, Ping)) for effects in asked) == MAX_FOR_ONE
    assert all(len(sent(effects, AckFor)) == 1 for effects in asked[MAX_FOR_ONE:])
    assert sent(core.receive(1.0, B, PingFor(entry(B), 1, C, NOTHING)), Ping)


def test_a_helper_runs_the_errand_and_says_so_if_it_was_in_vain() -> None:
    core = member(A, B)
    effects = core.receive(1.0, A, PingFor(entry(A), 42, B, NOTHING))
    [(to, ping)] = sent(effects, Ping)
    assert to == B
    assert isinstance(ping, Ping)
    [errand] = timers(effects, "request")
    [(asker, answer)] = sent(core.receive(1.1, B, Ack(entry(B), ping.number, NOTHING)), AckFor)
    assert (asker, answer) == (A, AckFor(answer.entry, 42, entry(B), answer.news))  # type: ignore[attr-defined]
    assert core.fire(1.0 + errand.after, errand.timer) == []
    effects = core.receive(3.0, A, PingFor(entry(A), 43, B, NOTHING))
    [errand] = timers(effects, "request")
    [(asker, answer)] = sent(core.fire(3.0 + errand.after, errand.timer), AckFor)
    assert asker == A
    assert isinstance(answer, AckFor)
    assert answer.answer is None
