"""A certified version of a state, and a donor that holds it."""

from __future__ import annotations

from dataclasses import replace

from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import Digest, PeerId, content_hash, digest
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Donor, state_root
from shoal.protocol.log.register import first_state, founded
from shoal.protocol.messages.log import Register, Result
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk, StateIs
from tests.simulation.versions import Versions
from tests.unit.rounds_kit import BASE, BRANCH, A, C

STATE = [b"chunk %d" % index for index in range(10)]
LAYOUT = b"simulated"
ROOT = state_root(LAYOUT, [content_hash(chunk) for chunk in STATE])
VERSION = BASE.round
ORIGIN = Base(0, 0, BASE.history, digest("the first state"))


def history_after(round: int) -> Digest:
    """The history of the run's branch."""
    return digest("history", b"%d" % round)


def register_after(round: int, root: bytes = ROOT, is_undone: bool = False) -> Register:
    """The register after the result of a round, which was made on a state with this root, and may be undone."""
    before = history_after(round - 1)
    part = replace(
        first_state(0),
        round=round,
        result=9 + round if is_undone else 10 + round,
        before=9 + round,
        root=root,  # type: ignore[arg-type]
        history=before if is_undone else history_after(round),
        last_history=before,
    )
    return founded(BRANCH, A, 1, parts=(part,))


def result_of(round: int) -> Result:
    """Only what it is matters here: the register says what follows."""
    return Result(0, round, 9 + round, ROOT, ROOT, b"", (), ())


def certify_next(certified: Certified) -> None:
    """The log goes on: the result that was made on the version names its root."""
    certified.read(result_of(VERSION + 1), register_after(VERSION + 1))


def certified_by(rounds: int) -> Certified:
    """What the log says up to the round of the version, and `rounds` more."""
    made = Certified(ORIGIN, register_after(VERSION, digest("an earlier state")), 0)
    for _ in range(rounds):
        certify_next(made)
    return made


def certified_by_root(root: Digest) -> Certified:
    """The log certifies a version with this root."""
    made = Certified(ORIGIN, register_after(VERSION, digest("an earlier state")), 0)
    made.read(replace(result_of(VERSION + 1), base_root=root), register_after(VERSION + 1, root))
    return made


def make_donor() -> Donor:
    """A donor that holds the certified version."""
    return Donor(0, certified_by(1).certifies, Versions({VERSION: STATE}))


def make_offer(donor: Donor, peer: PeerId = C, round: int = 0) -> StateIs:
    """What the donor offers `peer`."""
    (effect,) = donor.offer(0.0, peer, GetState(0, round, 0))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, StateIs)
    return effect.message


def served(donor: Donor, now: float, peer: PeerId, index: int = 0, version: int = VERSION) -> list[Message]:
    """What the donor sends when `peer` asks for a chunk; the bytes count as sent."""
    effects = donor.serve(now, peer, GetStateChunk(0, version, index))
    sends = [each for each in effects if isinstance(each, Send)]
    assert sends == effects
    assert all(each.to == peer for each in sends)
    for each in sends:
        assert isinstance(each.message, StateChunk)
        assert not each.message.payload, "it is read when its turn comes"
        donor.payload_done(peer, each.message)
    return [chunk_of(each.message.index) if each.is_late else each.message for each in sends]  # type: ignore[attr-defined]


def chunk_of(index: int) -> StateChunk:
    """The true chunk `index` of the version."""
    return StateChunk(0, VERSION, index, STATE[index])
