"""Codecs on a GPU: what is encoded there decodes to what is encoded on the processor, but for roundings half-way."""

from __future__ import annotations

import pytest
import torch

from shoal.protocol.compression import CODECS, Codec
from shoal.protocol.compression.feedback import with_feedback
from shoal.protocol.errors import LocalError
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
    payload, error = with_feedback(codec, torch.zeros_like(values), values)
    assert error.device == values.device
    assert torch.allclose(codec.decode(payload, 5000) + error.cpu(), values.cpu(), atol=1e-6)
