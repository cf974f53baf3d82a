"""Catching up, from donors that are honest, silent, gone or lying."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.effects import Blamed, Effect, Send, Timer
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, content_hash, digest
from shoal.protocol.catchup.donor import Donor, state_root
from shoal.protocol.catchup.download import bits_of
from shoal.protocol.catchup.transfer import MAX_LIARS, PATIENCE, WINDOW, Transfer
from shoal.protocol.log.register import founded
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.transfer import GetState, GetStateChunk, HaveChunks, StateChunk
from tests.simulation.versions import Versions
from tests.unit.rounds_kit import BASE, BRANCH, A, B, C, sent, told
from tests.unit.transfer_kit import (
    LAYOUT,
    ROOT,
    STATE,
    VERSION,
    certified_by,
    certify_next,
    chunk_of,
    history_after,
    make_donor,
    make_offer,
    register_after,
)


class _View:
    """Everybody is alive and one round ahead of the version."""

    def __init__(self, peers: tuple[PeerId, ...]) -> None:
        self.peers = list(peers)
        self.rounds = dict[PeerId, int]()
        self.histories = dict[PeerId, Digest]()

    def alive(self) -> list[PeerId]:
        return self.peers

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.peers

    def status(self, peer: PeerId) -> RunStatus | None:
        round = self.rounds.get(peer, VERSION + 1)
        history = self.histories.get(peer, history_after(round))
        return RunStatus(round, history, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "public")


def _joiner(peers: tuple[PeerId, ...] = (A, B)) -> Transfer:
    return Transfer(C, 0, certified_by(1), _View(peers), Versions())


def room_of(joiner: Transfer) -> Versions:
    """Where its chunks are."""
    assert isinstance(joiner._room, Versions)
    return joiner._room


def _view_of(joiner: Transfer) -> _View:
    assert isinstance(joiner._view, _View)
    return joiner._view


def _started(peers: tuple[PeerId, ...] = (A, B)) -> tuple[Transfer, PeerId, list[Effect]]:
    """A joiner that has an offer of the first donor that it asked."""
    joiner = _joiner(peers)
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    return joiner, ask.to, joiner.receive(0.2, ask.to, make_offer(make_donor()))


def test_a_state_comes_from_several_donors_and_is_checked_against_the_log() -> None:
    joiner, source, effects = _started()
    other = B if source == A else A
    assert [effect.to for effect in sent(effects, GetState)] == [other]
    waiting, asked = sent(effects, GetStateChunk), set[PeerId]()
    assert len(waiting) == 1, "its line may be slow"
    assert not sent(joiner.receive(0.3, other, make_offer(make_donor())), GetStateChunk), "and so may ours"
    while waiting:
        ask = waiting.pop(0)
        asked.add(ask.to)
        waiting += sent(joiner.receive(0.4, ask.to, chunk_of(ask.message.index)), GetStateChunk)  # type: ignore[attr-defined]
        assert len(waiting) <= 2 * WINDOW
    assert asked == {A, B}
    received = joiner.take()
    assert received is not None
    assert (received.base.round, received.base.root, room_of(joiner).take()) == (VERSION, ROOT, STATE)
    assert joiner.take() is None
    assert not joiner.active


def test_a_wrong_chunk_names_the_liar_and_is_asked_of_another() -> None:
    joiner, source, effects = _started()
    other = B if source == A else A
    joiner.receive(0.3, other, make_offer(make_donor()))
    index = sent(effects, GetStateChunk)[0].message.index  # type: ignore[attr-defined]
    effects = joiner.receive(0.4, source, StateChunk(0, VERSION, index, b"lie"))
    assert [event.peer for event in told(effects, Blamed)] == [source]
    assert {effect.to for effect in sent(effects, GetStateChunk)} <= {other}
    assert joiner._candidates() == [other]


def test_a_state_that_the_log_does_not_name_is_not_downloaded() -> None:
    joiner = _joiner()
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    lie = dataclasses.replace(make_offer(make_donor()), layout=b"another")
    assert [event.peer for event in told(joiner.receive(0.2, ask.to, lie), Blamed)] == [ask.to]
    assert joiner.progress() == (0, 0)


def test_who_is_on_another_branch_is_not_asked() -> None:
    joiner = _joiner()
    _view_of(joiner).histories[A] = digest("another branch")
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    assert ask.to == B
    assert joiner._candidates() == [B]


def test_who_stands_on_a_result_that_was_undone_has_the_state_before_it() -> None:
    joiner = _joiner()
    joiner._certified.skip(register_after(VERSION + 1, is_undone=True))
    assert joiner._certified.history(VERSION + 1) == history_after(VERSION)
    assert len(joiner._candidates()) == 2, "all stand on the result"


def test_who_may_be_on_another_branch_is_not_blamed_and_asked_again_only_when_it_stands_elsewhere() -> None:
    """It is further than our log, so that its history says nothing, and offers what was right where it has been."""
    joiner = _joiner()
    view = _view_of(joiner)
    view.rounds[A], view.histories[A] = VERSION + 9, digest("another branch")
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    assert ask.to == A
    strange = dataclasses.replace(make_offer(make_donor()), layout=b"another")
    effects = joiner.receive(0.2, A, strange)
    assert not told(effects, Blamed)
    assert [each.to for each in sent(effects, GetState)] == [B]
    assert joiner.receive(0.3, A, strange) == []
    assert joiner._candidates() == [B]
    view.rounds[A], view.histories[A] = VERSION + 1, history_after(VERSION + 1)
    assert joiner._candidates() == [A, B]


def test_an_offer_that_our_log_does_not_reach_yet_waits_for_it() -> None:
    """Rounds go on while a joiner asks; over a slow link every answer is behind the next one."""
    certified = certified_by(0)
    joiner = Transfer(C, 0, certified, _View((A,)), Versions())
    joiner.start(0.0, beyond=-1)
    assert joiner.receive(0.2, A, make_offer(make_donor())) == []
    assert joiner.log_read(0.3) == []
    certify_next(certified)
    assert sent(joiner.log_read(0.4), GetStateChunk)


def test_an_offer_from_before_our_log_begins_is_not_taken_again() -> None:
    """A donor goes on offering what it has pinned for us, as before we came over from another branch."""
    joiner = Transfer(C, 0, certified_by(3), _View((A,)), Versions())
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    old = dataclasses.replace(make_offer(make_donor()), round=VERSION - 2)
    (again,) = sent(joiner.receive(0.2, ask.to, old), GetState)
    assert isinstance(again.message, GetState)
    assert (again.message.round, again.message.least) == (0, VERSION - 1)
    assert joiner.receive(0.3, A, old) == [], "who offers it again all the same makes us ask no more"


def test_of_two_states_that_voters_vouch_for_one_is_taken_and_nobody_is_blamed() -> None:
    certified = certified_by(0)
    joiner = Transfer(C, 0, certified, _View((A, B)), Versions(), lambda round, root: round == VERSION)
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    sound = make_offer(make_donor())
    joiner.receive(0.2, ask.to, sound)
    other = B if ask.to == A else A
    assert joiner.receive(0.3, other, dataclasses.replace(sound, layout=b"another")) == []
    certify_next(certified)
    assert joiner.log_read(0.4) == []
    assert joiner.progress() == (0, len(STATE))


def test_a_vouched_state_that_turns_out_to_be_another_is_dropped() -> None:
    certified = certified_by(0)
    joiner = Transfer(C, 0, certified, _View((A, B)), Versions(), lambda round, root: round == VERSION)
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    joiner.receive(0.2, ask.to, dataclasses.replace(make_offer(make_donor()), layout=b"another"))
    assert joiner.progress() == (0, len(STATE))
    certify_next(certified)
    assert len(sent(joiner.log_read(0.4), GetState)) == 1
    assert joiner.progress() == (0, 0)


def test_who_offers_what_the_log_never_reaches_is_left() -> None:
    joiner = _joiner()
    (ask,) = sent(joiner.start(0.0, beyond=-1), GetState)
    lie = dataclasses.replace(make_offer(make_donor()), round=VERSION + 9)
    assert joiner.receive(0.2, ask.to, lie) == []
    (another,) = sent(joiner.fire(0.4 + PATIENCE, Timer("transfer", "look", joiner._token, "0")), GetState)
    assert another.to != ask.to


def test_what_was_not_asked_for_is_ignored() -> None:
    joiner, source, _ = _started((A,))
    before = repr(joiner)
    stranger = PeerId("x")
    for message in (make_offer(make_donor()), chunk_of(0), StateChunk(0, VERSION, 10**6, b"")):
        assert joiner.receive(0.5, stranger, message) == []
    joiner.receive(0.5, source, StateChunk(0, VERSION + 7, 0, b"of another version"))
    assert repr(joiner) == before


def _asked_of_both() -> tuple[Transfer, PeerId, PeerId, list[Send]]:
    """A joiner that has had its first chunk, of `source`; `source`, the other donor, and what it asks of both then."""
    joiner, source, effects = _started()
    other = B if source == A else A
    joiner.receive(0.3, other, make_offer(make_donor()))
    (ask,) = sent(effects, GetStateChunk)
    asks = sent(joiner.receive(0.4, source, chunk_of(ask.message.index)), GetStateChunk)  # type: ignore[attr-defined]
    assert {ask.to for ask in asks} == {A, B}
    return joiner, source, other, asks


def test_a_silent_donor_is_replaced_and_a_dead_end_left() -> None:
    joiner, _, other, asks = _asked_of_both()
    asks = [ask for ask in asks if ask.to == other]
    for ask in asks:  # which grows
        more = sent(joiner.receive(0.4, other, chunk_of(ask.message.index)), GetStateChunk)  # type: ignore[attr-defined]
        asks += [ask for ask in more if ask.to == other]
    effects = joiner.fire(0.4 + PATIENCE + 0.1, Timer("transfer", "look", 1, "0"))
    assert {effect.to for effect in sent(effects, GetStateChunk)} == {other}
    effects = joiner.fire(20.0, Timer("transfer", "look", 1, "0"))
    assert sent(effects, GetState), "no donor is left: begin anew"


def test_what_a_donor_sends_too_late_is_taken_all_the_same_and_it_is_asked_again() -> None:
    joiner, source, other, asks = _asked_of_both()
    late, theirs = ([ask.message.index for ask in asks if ask.to == peer] for peer in (source, other))  # type: ignore[attr-defined]
    joiner.receive(1.0, other, chunk_of(theirs[0]))
    joiner.fire(0.5 + PATIENCE, Timer("transfer", "look", joiner._token, "0"))
    assert joiner.progress() == (2, 10)
    assert not any(to == source for to, _ in joiner._download.asked.values())  # type: ignore[union-attr]
    more = sent(joiner.receive(4.0, source, chunk_of(late[0])), GetStateChunk)
    assert joiner.progress() == (3, 10)
    missing = next(index for index in range(10) if joiner._download.lacks(index))  # type: ignore[union-attr]
    joiner.receive(4.1, PeerId("stranger"), chunk_of(missing))
    assert joiner.progress() == (3, 10)
    assert source in {ask.to for ask in more}


def test_while_nothing_has_come_at_all_one_more_is_asked_for_something_else() -> None:
    """Our line may be slow, and the same chunk from another would make it slower."""
    joiner, source, effects = _started()
    other = B if source == A else A
    joiner.receive(0.3, other, make_offer(make_donor()))
    (first,) = sent(effects, GetStateChunk)
    (second,) = sent(joiner.fire(0.3 + PATIENCE, Timer("transfer", "look", joiner._token, "0")), GetStateChunk)
    assert second.to == other
    assert first.message != second.message
    assert not sent(joiner.fire(3 * PATIENCE, Timer("transfer", "look", joiner._token, "0")), GetStateChunk)


def test_who_owes_a_chunk_is_a_donor_again_once_it_brings_it_although_others_were_faster() -> None:
    joiner, source, other, asks = _asked_of_both()
    late = next(ask.message.index for ask in asks if ask.to == source)  # type: ignore[attr-defined]
    joiner.receive(1.0, other, chunk_of(next(iter(_asked_of(joiner, other)))))
    joiner.fire(0.5 + PATIENCE, _look(joiner))
    download = joiner._download
    assert download is not None
    assert source not in download.donors
    while late not in download.here:
        joiner.receive(3.9, other, chunk_of(min(_asked_of(joiner, other))))
    joiner.receive(4.0, source, make_offer(make_donor()))
    assert source not in download.donors, "an offer is none of what it owes"
    joiner.receive(4.1, source, chunk_of(late))
    assert source in download.donors


def test_a_donor_that_lied_is_asked_no_more_whatever_it_offers() -> None:
    joiner, source, _, asks = _asked_of_both()
    theirs = [ask.message.index for ask in asks if ask.to == source]  # type: ignore[attr-defined]
    lies = [joiner.receive(0.5, source, StateChunk(0, VERSION, index, b"lie")) for index in theirs]
    assert len(theirs) > 1
    assert [len(told(effects, Blamed)) for effects in lies] == [1] + [0] * (len(theirs) - 1)
    joiner.receive(0.6, source, make_offer(make_donor()))
    assert not _asked_of(joiner, source)


def test_nobody_but_donors_is_asked_before_the_first_chunk_has_come() -> None:
    joiner, *_ = _started()
    _view_of(joiner).peers.append(FELLOW)
    joiner.receive(0.3, FELLOW, HAS_ALL)
    for second in range(1, 15):
        joiner.fire(float(second), _look(joiner))
        assert not _asked_of(joiner, FELLOW)


def _with_a_fellow() -> tuple[Transfer, PeerId]:
    """A joiner that has a chunk, and asks a fellow that says it has all, too; and a donor of it."""
    joiner, _, other, _ = _asked_of_both()
    _view_of(joiner).peers.append(FELLOW)
    joiner.receive(0.5, FELLOW, HAS_ALL)
    joiner.receive(0.6, other, chunk_of(min(_asked_of(joiner, other))))
    return joiner, other


def test_a_silent_joiner_is_asked_again_once_it_has_brought_a_chunk_that_it_owes() -> None:
    joiner, other = _with_a_fellow()
    (owed,) = _asked_of(joiner, FELLOW)
    at = 0.7 + PATIENCE
    for now in (1.5, 2.5):
        joiner.receive(now, other, chunk_of(min(_asked_of(joiner, other))))
    joiner.fire(at, _look(joiner))
    joiner.receive(at + 0.1, FELLOW, HAS_ALL)
    assert not _asked_of(joiner, FELLOW), "it says what it has, and does not send it"
    joiner.receive(at + 0.2, FELLOW, chunk_of(next(i for i in range(9, 0, -1) if i not in (owed, *_here(joiner)))))
    joiner.receive(at + 0.3, FELLOW, HAS_ALL)
    assert not _asked_of(joiner, FELLOW), "nor another chunk than it owes"
    joiner.receive(at + 0.4, FELLOW, chunk_of(owed))
    assert owed in _here(joiner)
    joiner.receive(at + 1.0, FELLOW, HAS_ALL)
    assert FELLOW not in joiner._download.donors  # type: ignore[union-attr]
    assert _asked_of(joiner, FELLOW)


def test_a_joiner_that_gets_there_first_is_a_donor_and_no_joiner_any_more() -> None:
    """Else what it is asked for as a donor would count among the few chunks that joiners may bring."""
    joiner, _ = _with_a_fellow()
    joiner._invited.append(FELLOW)
    joiner.receive(0.7, FELLOW, make_offer(make_donor()))
    assert FELLOW in joiner._download.donors  # type: ignore[union-attr]
    assert not joiner._download.fellows  # type: ignore[union-attr]


def test_a_joiner_without_what_it_said_is_not_asked_again() -> None:
    joiner, _, other, _ = _asked_of_both()
    for peer in (FELLOW, PeerId("a third")):
        _view_of(joiner).peers.append(peer)
        joiner.receive(0.5, peer, HAS_ALL)
    joiner.receive(0.6, other, chunk_of(min(_asked_of(joiner, other))))
    (asked,) = _asked_of(joiner, FELLOW)
    joiner.receive(0.7, FELLOW, StateChunk(0, VERSION, asked, b""))
    joiner.receive(1.0, FELLOW, HAS_ALL)
    assert not _asked_of(joiner, FELLOW)


def test_what_one_joiner_did_not_bring_is_asked_of_no_other_joiner() -> None:
    """Else the last chunk would go from one silent joiner to the next."""
    joiner, _, other, _ = _asked_of_both()
    third = PeerId("a third")
    _view_of(joiner).peers += [FELLOW, third]
    joiner.receive(0.5, FELLOW, HAS_ALL)
    joiner.receive(0.6, other, chunk_of(min(_asked_of(joiner, other))))
    (owed,) = _asked_of(joiner, FELLOW)
    only_that = HaveChunks(0, VERSION, ROOT, bits_of([owed], 10))
    for now in (1.5, 2.5):
        joiner.receive(now, other, chunk_of(min(_asked_of(joiner, other))))
    joiner._download.donors.clear()  # type: ignore[union-attr]
    joiner._download.give_up(FELLOW)  # type: ignore[union-attr]
    joiner.receive(3.0, third, only_that)
    assert not _asked_of(joiner, third)


def test_a_joiner_that_has_died_and_is_back_owes_nothing() -> None:
    joiner, _ = _with_a_fellow()
    assert _asked_of(joiner, FELLOW)
    _view_of(joiner).peers.remove(FELLOW)
    joiner.fire(1.0, _look(joiner))
    assert not _asked_of(joiner, FELLOW)
    _view_of(joiner).peers.append(FELLOW)
    joiner.receive(2.0, FELLOW, HAS_ALL)
    assert FELLOW in joiner._download.fellows  # type: ignore[union-attr]


def test_a_quick_joiner_does_not_make_donors_look_slow() -> None:
    """Else one quick chunk would have the donors, whose lines may be slow, asked one after the other."""
    joiner, *_ = _started()
    download = joiner._download
    assert download is not None
    for took, is_donor in ((9.0, True), (0.1, False)):
        download.learn(took, is_donor)
    most = download.most
    download.learn(9.0, is_donor=True)
    assert download.most >= most


FELLOW = PeerId("another joiner")
HAS_ALL = HaveChunks(0, VERSION, ROOT, b"\xff\x03")


def _look(joiner: Transfer) -> Timer:
    return Timer("transfer", "look", joiner._token, "0")


def _here(joiner: Transfer) -> set[int]:
    assert joiner._download is not None
    return joiner._download.here


def _asked_of(joiner: Transfer, peer: PeerId) -> list[int]:
    assert joiner._download is not None
    return [index for index, (asked, _) in joiner._download.asked.items() if asked == peer]


def test_who_is_dead_is_not_waited_for() -> None:
    joiner, source, other, _ = _asked_of_both()
    _view_of(joiner).peers.remove(source)
    joiner.fire(1.0, Timer("transfer", "look", joiner._token, "0"))
    assert {to for to, _ in joiner._download.asked.values()} == {other}  # type: ignore[union-attr]


def test_donors_hear_now_and_then_that_a_joiner_is_still_at_it() -> None:
    joiner, *_ = _asked_of_both()
    heard = list[float]()
    for second in range(1, 16):
        effects = joiner.fire(float(second), Timer("transfer", "look", joiner._token, "0"))
        heard += [float(second)] * (len(sent(effects, HaveChunks)) == 2)
        if second % 2 == 0:
            index, (donor, _) = next(iter(joiner._download.asked.items()))  # type: ignore[union-attr]
            joiner.receive(float(second), donor, chunk_of(index))
    assert heard == [11.0]


def test_chunks_stand_behind_each_other_on_a_slow_link() -> None:
    """Each comes in time after the one before it, though long after it was asked for."""
    joiner, source, _ = _started((A,))
    joiner.receive(0.0, source, make_offer(make_donor()))
    now, came = 0.0, 0
    while (asked := joiner._download) is not None and not asked.is_complete:
        index = min(asked.asked)
        now += 0.9 * PATIENCE
        joiner.fire(now, Timer("transfer", "look", joiner._token, "0"))
        joiner.receive(now, source, chunk_of(index))
        came += 1
        assert joiner.progress()[0] == came
    assert joiner.take() is not None


def test_where_all_links_are_slow_patience_grows() -> None:
    joiner, _, _ = _started((A,))
    asks, now = [], 0.0
    while now < 40 * PATIENCE:
        now += PATIENCE / 3
        if sent(joiner.fire(now, Timer("transfer", "look", joiner._token, "0")), GetState):
            asks.append(now)
    gaps = [later - sooner for sooner, later in pairwise([0.0, *asks])]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 1.5 * gaps[0]


def test_what_is_here_from_an_earlier_process_is_not_asked_for() -> None:
    joiner = _joiner((A,))
    room_of(joiner).disk.update({content_hash(chunk): chunk for chunk in STATE[:9]})
    joiner.start(0.0, beyond=-1)
    asks = sent(joiner.receive(0.2, A, make_offer(make_donor())), GetStateChunk)
    assert [ask.message.index for ask in asks] == [9]  # type: ignore[attr-defined]
    assert joiner.progress() == (9, 10)
    joiner.receive(0.3, A, chunk_of(9))
    assert joiner.take() is not None
    assert room_of(joiner).take() == STATE


def test_whom_nobody_can_help_does_not_begin_and_who_is_overtaken_stops() -> None:
    assert _joiner(()).start(0.0, beyond=0) == []
    assert _joiner().start(0.0, beyond=VERSION) == []
    joiner, _, _ = _started()
    joiner.passed(VERSION)
    assert joiner.progress() == (0, 0)
    joiner.fire(5.0, Timer("transfer", "look", 1, "0"))
    assert not joiner.active


def test_the_state_that_a_run_goes_on_from_needs_no_result() -> None:
    """The manifest names its root, so it can be had before the run's first round is over."""
    origin = Base(VERSION + 1, 0, BASE.history, ROOT)  # where everybody stands
    certified = Certified(origin, founded(BRANCH, A, 1), 0)
    joiner = Transfer(C, 0, certified, _View((A,)), Versions({}))
    _view_of(joiner).histories[A] = origin.history
    donor = Donor(0, certified.certifies, Versions({VERSION + 1: STATE}))
    assert joiner.start(0.0, beyond=VERSION + 1) == []
    assert sent(joiner.start(0.0, beyond=VERSION), GetState) == [Send(A, GetState(0, 0, VERSION + 1))]
    asks = sent(joiner.receive(0.2, A, make_offer(donor)), GetStateChunk)
    for ask in asks:  # which grows
        index = ask.message.index  # type: ignore[attr-defined]
        asks += sent(joiner.receive(0.3, A, StateChunk(0, VERSION + 1, index, STATE[index])), GetStateChunk)
    received = joiner.take()
    assert received is not None
    assert received.base == origin


def test_liars_are_remembered_in_a_bounded_number() -> None:
    joiner = _joiner()
    for number in range(2 * MAX_LIARS):
        joiner._blame(PeerId(f"liar {number // 2}"), "lies")
        joiner._blame(B, "lies")
    assert joiner._candidates() == [A]
    assert len(joiner._liars) <= MAX_LIARS


def test_the_root_depends_on_layout_and_order() -> None:
    hashes = [Digest(content_hash(chunk)) for chunk in STATE]
    assert len({state_root(LAYOUT, hashes), state_root(b"", hashes), state_root(LAYOUT, hashes[::-1])}) == 3
