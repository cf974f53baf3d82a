"""A certified version of a state, and a donor that holds it."""

from __future__ import annotations

import dataclasses

from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import Digest, PeerId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Donor, state_root
from shoal.protocol.messages.rounds import Certificate
from shoal.protocol.messages.transfer import GetState, GetStateChunk, StateChunk, StateIs
from shoal.protocol.rounds.agreement.history import History
from shoal.protocol.rounds.agreement.roster import Base
from tests.simulation.versions import Versions
from tests.unit.rounds_kit import BASE, SIGNER, A, C, certificate, value

STATE = [b"chunk %d" % index for index in range(10)]
LAYOUT = b"simulated"
ROOT = state_root(LAYOUT, [content_hash(chunk) for chunk in STATE])
VERSION = BASE.round


def certified_next() -> Certificate:
    """The certificate of the round after the version, which names its root."""
    prepared = value()
    proposal = dataclasses.replace(prepared.proposal, base_root=ROOT)
    return certificate(dataclasses.replace(prepared, proposal=proposal))


def earlier_link(round: int, root: Digest = BASE.root) -> Certificate:
    """A certificate of an earlier round; only its round and the root that it certifies matter here."""
    proof = certificate()
    return dataclasses.replace(proof, proposal=dataclasses.replace(proof.proposal, round=round, base_root=root))


def history_of(links: int) -> History:
    """The chain of certificates up to the version, and `links` more."""
    made = History(Base(0, BASE.history, ROOT, BASE.voters), SIGNER)
    made._links, made._tip = [earlier_link(round) for round in range(1, VERSION + 1)], BASE
    made.extend([certified_next()] * links, A)
    return made


def make_donor() -> Donor:
    """A donor that holds the certified version."""
    return Donor(0, history_of(1).certifies, Versions({VERSION: STATE}))


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
    return [each.filled() for each in sends]


def chunk_of(index: int) -> StateChunk:
    """The true chunk `index` of the version."""
    return StateChunk(0, VERSION, index, STATE[index])
