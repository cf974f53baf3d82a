"""Codecs on a GPU: what it encodes decodes to what the CPU encodes, except for values halfway between two."""

from __future__ import annotations

import pytest
import torch

from shoal.node.lab.codecs import CODECS
from shoal.node.training.methods.sparseloco import compress
from shoal.protocol.base.errors import LocalError
from shoal.protocol.tensors.compression import Codec
from tests.unit.test_compression import normal

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


@each_codec
@pytest.mark.parametrize("n", [1, 1000, 1 << 18, (1 << 20) + 4096 + 77])
def test_a_payload_made_there_says_the_same(codec: Codec, n: int) -> None:
    values = normal(n)
    there = codec.decode(codec.encode(values.cuda()), n)
    here = codec.decode(codec.encode(values), n)
    assert (there - here).norm() <= 1e-2 * here.norm()


@each_codec
def test_nan_does_not_leave_it(codec: Codec) -> None:
    values = torch.ones(5000)
    values[4999] = torch.nan
    with pytest.raises(LocalError):
        codec.encode(values.cuda())


@each_codec
def test_what_was_not_sent_is_remembered_there(codec: Codec) -> None:
    values = normal(5000).cuda()
    sent, error = compress(codec, torch.zeros_like(values), values, decay=1.0)
    assert error.device == values.device
    assert torch.allclose(sent + error.cpu(), values.cpu(), atol=1e-6)
