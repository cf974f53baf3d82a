"""With every codec, members hold the same bytes after a round in which an owner died, near the true mean."""

from __future__ import annotations

import pytest
from torch import Tensor

from shoal.node.lab.codecs import CODECS
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Ballot
from shoal.protocol.rounds.allreduce.allreduce import AllReduce
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.allreduce.wanted import Wanted
from shoal.protocol.tensors.compression import Codec
from shoal.protocol.tensors.reduction import MeanReducer
from tests.unit.rounds_kit import CHUNKS, plan
from tests.unit.test_allreduce import _exchange
from tests.unit.test_compression import normal

SIZE = 5000
FIRST, SECOND, DEAD = plan().members


def change(peer: PeerId, chunk: int) -> Tensor:
    return normal(SIZE, 10 * plan().members.index(peer) + chunk)


def member(me: PeerId, codec: Codec) -> AllReduce:
    reducer, shelf = MeanReducer([SIZE] * CHUNKS, codec, codec), Shelf()
    shelf.open(reducer)
    return AllReduce(me, plan(), reducer, lambda chunk: bytes(codec.encode(change(me, chunk))), shelf, Wanted())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_living_hold_the_same_bytes(codec: Codec) -> None:
    cores = {peer: member(peer, codec) for peer in (FIRST, SECOND)}
    _exchange(cores, {peer: core.start() for peer, core in cores.items()})
    _exchange(cores, {peer: core.lose(DEAD) for peer, core in cores.items()})
    message = cores[FIRST].reassignment(Ballot(1, 0, FIRST), 1, everything=False)
    assert message is not None
    _exchange(cores, {peer: core.reassign(FIRST, message.assignments) for peer, core in cores.items()})
    assert cores[FIRST].results.references() == cores[SECOND].results.references()
    for chunk in range(CHUNKS):
        one, other = (core.results[chunk] for core in cores.values())
        assert one is not None
        assert other is not None
        assert one.payload == other.payload
        weights = dict(zip(plan().members, plan().weights, strict=True))
        share = weights[FIRST] / (weights[FIRST] + weights[SECOND])
        mean = share * change(FIRST, chunk) + (1 - share) * change(SECOND, chunk)
        assert (codec.decode(one.payload, SIZE) - mean).norm() < mean.norm()
