"""The butterfly, one member at a time: three cores back to back, and what they refuse."""

from __future__ import annotations

import msgpack
import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId, result_hash
from shoal.protocol.messages.rounds import Assignment, Ballot, Contribution, Final, Have, Want
from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.allreduce.allreduce import AllReduce, Blamed
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.allreduce.wanted import Wanted
from tests.simulation.facts import POISON, TOO_LONG, FactReducer
from tests.unit.rounds_kit import CHUNKS, ROUND, STRANGER, plan, refused, sent, told

ME, NEXT, LAST = plan().members
OWN = plan().owners.index(ME)
THEIRS = plan().owners.index(NEXT)
MASK = mask_of(plan().members, plan().members)


def _core(me: PeerId = ME) -> AllReduce:
    shelf = Shelf()
    shelf.open(FactReducer())
    return AllReduce(me, plan(), FactReducer(), lambda chunk: _fact(me, chunk), shelf, Wanted())


def _fact(peer: PeerId, chunk: int) -> bytes:
    packed: bytes = msgpack.packb([peer, ROUND, b"", chunk, 1.0])
    return packed


def _contribution(chunk: int = OWN, epoch: tuple[int, int] = (0, 0), peer: PeerId = NEXT) -> Contribution:
    return Contribution(ROUND, 0, 1, chunk, epoch, _fact(peer, chunk))


def _final(chunk: int = THEIRS, epoch: tuple[int, int] = (0, 0), mask: bytes = MASK, payload: bytes = b"mean") -> Final:
    return Final(ROUND, 0, 1, chunk, epoch, mask, payload)


def _exchange(cores: dict[PeerId, AllReduce], effects: dict[PeerId, list[Effect]]) -> None:
    """Deliver until nothing is left to deliver."""
    waiting = [(sender, effect) for sender, sent_by in effects.items() for effect in sent_by]
    while waiting:
        sender, effect = waiting.pop(0)
        if not isinstance(effect, Send) or effect.to not in cores:
            continue
        core, message = cores[effect.to], effect.filled()
        if isinstance(message, Contribution):
            follow = core.receive_contribution(sender, message)
        elif isinstance(message, Final):
            follow = core.receive_final(sender, message)
        elif isinstance(message, Want):
            follow = core.receive_want(sender, message)
        else:
            follow = []
        waiting += [(effect.to, next_one) for next_one in follow]


def test_everybody_ends_with_the_same_bytes() -> None:
    cores = {peer: _core(peer) for peer in plan().members}
    _exchange(cores, {peer: core.start() for peer, core in cores.items()})
    assert all(core.is_complete for core in cores.values())
    assert len({core.results.references() for core in cores.values()}) == 1
    assert all(ref.mask == MASK for ref in cores[ME].results.references())


def test_a_dead_owner_costs_its_chunks_and_no_more() -> None:
    cores = {peer: _core(peer) for peer in (ME, NEXT)}
    _exchange(cores, {peer: core.start() for peer, core in cores.items()})
    lost = {peer: core.lose(LAST) for peer, core in cores.items()}
    _exchange(cores, lost)
    message = cores[ME].reassignment(Ballot(1, 0, ME), 1, everything=False)
    assert message is not None
    assert [move.chunk for move in message.assignments] == [plan().owners.index(LAST)]
    moved = {peer: core.reassign(ME, message.assignments) for peer, core in cores.items()}
    assert sum(len(sent(effects, Contribution)) for effects in moved.values()) == 1
    _exchange(cores, moved)
    assert cores[ME].is_complete
    assert cores[ME].results.references() == cores[NEXT].results.references()


def test_what_the_dead_owner_handed_out_is_taken_over_and_not_computed_again() -> None:
    core = _core()
    core.start()
    core.receive_final(NEXT, _final())
    (effect,) = core.reassign(LAST, (Assignment(THEIRS, LAST, (0, 1)),))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Have)


def test_only_what_was_offered_in_this_attempt_is_adopted() -> None:
    core = _core()
    core.start()
    core.reassign(LAST, (Assignment(THEIRS, ME, (0, 1)),))
    core.receive_have(LAST, Have(ROUND, 0, 1, THEIRS, result_hash(MASK, b"offered")))
    assert core.adopt(THEIRS, MASK, b"of an earlier attempt") == []
    assert core.results[THEIRS] is None
    assert sent(core.adopt(THEIRS, MASK, b"offered"), Final)


def test_a_holder_offers_one_result_only() -> None:
    core = _core()
    core.start()
    core.reassign(LAST, (Assignment(THEIRS, ME, (0, 1)),))
    core.receive_have(LAST, Have(ROUND, 0, 1, THEIRS, result_hash(MASK, b"one")))
    with refused(core, LAST, "offers two results"):
        core.receive_have(LAST, Have(ROUND, 0, 1, THEIRS, result_hash(MASK, b"two")))


BAD = [
    ("receive_contribution", STRANGER, _contribution(), "not in this round's group"),
    ("receive_contribution", NEXT, _contribution(chunk=CHUNKS), "names chunk 3 of 3"),
    ("receive_contribution", NEXT, _contribution(chunk=THEIRS), "not ours"),
    ("receive_final", STRANGER, _final(), "not in this round's group"),
    ("receive_final", NEXT, _final(chunk=CHUNKS), "names chunk 3 of 3"),
    ("receive_final", LAST, _final(), "does not own"),
    ("receive_final", NEXT, _final(mask=b""), "mask"),
    ("receive_final", NEXT, _final(payload=POISON), "bad result of chunk"),
    ("receive_want", NEXT, Want(ROUND, 0, 1, (CHUNKS,), ()), "names chunk 3 of 3"),
    ("receive_want", STRANGER, Want(ROUND, 0, 1, (), (0,)), "not in this round's group"),
    ("receive_have", NEXT, Have(ROUND, 0, 1, CHUNKS, b"0" * 32), "names chunk 3 of 3"),  # type: ignore[arg-type]
    ("reassign", NEXT, (Assignment(0, STRANGER, (0, 1)),), "a stranger the owner"),
    ("reassign", NEXT, (Assignment(0, ME, (0, 1)), Assignment(CHUNKS, ME, (0, 1))), "names chunk 3 of 3"),
]


@pytest.mark.parametrize(("method", "sender", "message", "reason"), BAD)
def test_bad_messages_name_their_sender_and_change_nothing(
    method: str, sender: PeerId, message: object, reason: str
) -> None:
    core = _core()
    core.start()
    with refused(core, sender, reason):
        getattr(core, method)(sender, message)


def test_bad_bytes_are_left_out_and_their_sender_blamed() -> None:
    core = _core()
    core.start()
    effects = core.receive_contribution(NEXT, Contribution(ROUND, 0, 1, OWN, (0, 0), POISON))
    effects += core.receive_contribution(LAST, _contribution(peer=LAST))
    assert [event.peer for event in told(effects, Blamed)] == [NEXT]
    result = core.results[OWN]
    assert result is not None
    assert result.mask == mask_of(plan().members, [ME, LAST])


def test_a_contribution_of_a_wrong_size_is_left_out_when_it_comes() -> None:
    """Nobody waits for its turn, nor for another one of its sender, and it is said once."""
    core = _core()
    core.start()
    effects = core.receive_contribution(LAST, Contribution(ROUND, 0, 1, OWN, (0, 0), TOO_LONG))
    assert [event.peer for event in told(effects, Blamed)] == [LAST]
    assert not core.lacking.lacks_contribution(LAST)
    assert core.receive_contribution(LAST, Contribution(ROUND, 0, 1, OWN, (0, 0), TOO_LONG)) == []
    assert core.receive_contribution(LAST, _contribution(peer=LAST)) == []
    core.receive_contribution(NEXT, _contribution())
    result = core.results[OWN]
    assert result is not None
    assert result.mask == mask_of(plan().members, [ME, NEXT])


def test_a_result_that_is_here_is_not_replaced() -> None:
    core = _core()
    core.receive_final(NEXT, _final(payload=b"first"))
    core.receive_final(NEXT, _final(payload=b"second"))
    result = core.results[THEIRS]
    assert result is not None
    assert result.payload == b"first"


def test_bytes_of_a_later_epoch_wait_for_their_move_and_are_bounded() -> None:
    core = _core()
    core.start()
    for _ in range(100):
        core.receive_final(LAST, _final(epoch=(0, 1)))
    assert len(core._early[THEIRS]) == 1
    core.reassign(ME, (Assignment(THEIRS, LAST, (0, 1)),))
    assert core.results[THEIRS] is not None


def test_bytes_of_a_later_epoch_that_are_no_mean_of_their_chunk_are_not_kept() -> None:
    core = _core()
    core.start()
    with refused(core, LAST, "bad result"):
        core.receive_final(LAST, _final(epoch=(0, 1), payload=POISON))
    with refused(core, LAST, "mask"):
        core.receive_final(LAST, _final(epoch=(0, 1), mask=b""))
    core.receive_final(NEXT, _final())
    core.receive_final(LAST, _final(epoch=(0, 1)))
    assert not core._early, "it is here already"


def test_contributions_of_a_later_epoch_that_cannot_be_such_are_not_kept() -> None:
    core = _core()
    core.start()
    with refused(core, LAST, f"contributes {len(TOO_LONG)} bytes"):
        core.receive_contribution(LAST, Contribution(ROUND, 0, 1, THEIRS, (0, 1), TOO_LONG))
    assert not core._early
    core.receive_contribution(LAST, _contribution(THEIRS, (0, 1), LAST))
    with refused(core, LAST, f"contributes {len(TOO_LONG)} bytes"):
        core.receive_contribution(LAST, Contribution(ROUND, 0, 1, THEIRS, (0, 1), TOO_LONG))
    assert core._early[THEIRS][LAST, Contribution].payload == _fact(LAST, THEIRS)


def test_whoever_sent_a_wrong_size_early_is_asked_again_and_left_out() -> None:
    """It is awaited like anybody who has sent nothing, and the chunk is made without it when it lies again."""
    core = _core()
    core.start()
    with refused(core, LAST, "contributes"):
        core.receive_contribution(LAST, Contribution(ROUND, 0, 1, THEIRS, (0, 1), TOO_LONG))
    core.lose(NEXT)
    core.reassign(LAST, (Assignment(THEIRS, ME, (0, 1)),))
    assert core.lacking.lacks_contribution(LAST)
    (want,) = sent(core.lacking.want(LAST), Want)
    assert isinstance(want.message, Want)
    assert THEIRS in want.message.contributions
    effects = core.receive_contribution(LAST, Contribution(ROUND, 0, 1, THEIRS, (0, 1), TOO_LONG))
    assert [event.peer for event in told(effects, Blamed)] == [LAST]
    result = core.results[THEIRS]
    assert result is not None
    assert result.mask == mask_of(plan().members, [ME])


def test_an_early_lie_is_blamed_on_its_sender_when_the_move_comes() -> None:
    core = _core()
    core.start()
    core.receive_final(NEXT, _final(chunk=OWN, epoch=(0, 1)))
    effects = core.reassign(ME, (Assignment(OWN, LAST, (0, 1)),))
    assert [event.peer for event in told(effects, Blamed)] == [NEXT]


def test_a_request_is_answered_with_what_there_is_once() -> None:
    core = _core()
    core.start()
    assert core.receive_want(NEXT, Want(ROUND, 0, 1, (), (OWN,))) == []
    again = core.receive_want(NEXT, Want(ROUND, 0, 1, (THEIRS,) * 50, ()))
    assert len(sent(again, Contribution)) == 1


def test_contributions_are_wanted_until_the_round_is_over_and_means_until_the_attempt_has_failed() -> None:
    wanted = Wanted()
    shelf = Shelf()
    shelf.open(FactReducer())
    core = AllReduce(ME, plan(), FactReducer(), lambda chunk: _fact(ME, chunk), shelf, wanted)
    contributions = sent(core.start(), Contribution)
    effects = [core.receive_contribution(peer, _contribution(peer=peer)) for peer in (NEXT, LAST)]
    means = sent(effects[-1], Final) + sent(core.receive_want(NEXT, Want(ROUND, 0, 1, (), (OWN,))), Final)
    assert len(means) == len(plan().members)
    assert all(each.is_wanted() for each in [*contributions, *means])
    wanted.conclude()
    assert not any(each.is_wanted() for each in contributions)
    assert all(each.is_wanted() for each in means)
    wanted.give_up()
    assert not any(each.is_wanted() for each in means)
