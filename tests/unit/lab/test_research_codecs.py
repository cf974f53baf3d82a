"""The codecs for research keep their bounds, decode given bytes to given values, and refuse what they never send."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from shoal.node.lab.codecs import CODECS, codec, uint8
from shoal.node.lab.codecs.fedzip import HEAD
from shoal.node.manifest.codec import RESEARCH_CODECS
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.tensors import compression
from shoal.protocol.tensors.compression.base import Payload
from shoal.protocol.tensors.compression.sparse import BLOCK, KEPT
from tests.unit.lab.lab_kit import crowd_of, study_of
from tests.unit.test_codec_bounds import LARGEST, error, refused, trip
from tests.unit.test_codec_bounds import largest as largest_of
from tests.unit.test_compression import normal, vectors
from tests.unit.test_sparse_codecs import kept_of, least_kept, longer


def test_the_laboratory_has_a_run_s_codecs_and_those_that_a_manifest_may_not_name() -> None:
    assert set(CODECS) - set(compression.CODECS) == set(RESEARCH_CODECS)
    assert all(CODECS[name] is each for name, each in compression.CODECS.items())


@pytest.mark.parametrize("name", RESEARCH_CODECS)
def test_the_laboratory_trains_with_each(name: str) -> None:
    study = study_of("sparseloco", crowd_of(3, steps=8), f"codec={name}")
    losses = [study.advance() for _ in range(8)]
    assert losses[-1] < losses[0]
    assert study.traffic.contributed == pytest.approx(2 * 2 / 3 * codec(name).bytes_for(study.weights.shape[1]))


# -- uint8 --------------------------------------------------------------------------------------------------


@given(vectors)
def test_uint8_errs_within_its_bound(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    width = (values.double().max() - values.double().min()) if len(values) else torch.tensor(0.0)
    narrow = width < uint8.NARROWEST
    assert (error("uint8", values) <= (width if narrow else width / 256 * (1 + 2.0**-13))).all()


def test_uint8_keeps_the_mean_and_needs_no_values_around_zero() -> None:
    values = normal(3 * uint8.BLOCK).double()
    back = trip("uint8", values.float()).double()
    assert abs((back - values).mean()) < 1e-7
    far = (1000 + values).float()
    assert error("uint8", far).max() <= (far.max() - far.min()) / 256 * 1.001
    assert error("int8", far).max() > 50 * error("uint8", far).max()


def test_uint8_is_exact_on_few_values() -> None:
    values = torch.tensor([0.0, 0.1, 0.0, -7.3, 1e30])[torch.arange(uint8.BLOCK + 9) % 2]
    assert torch.equal(trip("uint8", values), values)


def test_uint8_of_these_values_is_these_bytes() -> None:
    payload = codec("uint8").encode(torch.tensor([0.0, 1.0, 0.5, 0.501]))
    table = np.frombuffer(payload, "<f4", 256)
    assert payload[1024:] == bytes((0, 255, 127, 128))
    assert table[[0, 126, 127, 128, 254, 255]].tolist() == np.array([0, 0, 0.5, 0.501, 0.501, 1], np.float32).tolist()


def test_uint8_refuses_a_table_that_falls() -> None:
    payload = bytearray(codec("uint8").encode(torch.linspace(-1, 1, 1000)))
    payload[4:8] = struct.pack("<f", -1.5)
    refused("uint8", bytes(payload), 1000)


# -- sign ---------------------------------------------------------------------------------------------------


@given(vectors)
def test_sign_errs_within_its_bounds(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    m = largest_of(values)
    errors = error("sign", values)
    assert (errors <= (m * (1 + 2.0**-23)).clamp(min=2.0**-126)).all()
    for part, err in zip(values.split(1024), errors.split(1024), strict=True):
        x = part.double()
        if len(x) and x.abs().mean() >= 2.0**-126:
            expected = x.square().sum() - x.abs().sum() ** 2 / len(x)
            assert err.square().sum() <= expected + x.square().sum() * 2.0**-20


def test_sign_sends_ones_and_a_mean() -> None:
    payload = struct.pack("<fB", 2.0, 0b10)
    assert codec("sign").encode(torch.tensor([3.0, -1.0])) == payload
    assert codec("sign").decode(payload, 2).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("value", [0.1, -3.7, 2.0**-126, LARGEST])
def test_sign_is_exact_on_blocks_of_one_magnitude(value: float) -> None:
    values = torch.full((2051,), value) * (1 - 2 * (torch.arange(2051) % 3 == 0))
    assert torch.equal(trip("sign", values), values)


@pytest.mark.parametrize(("s", "signs"), [(-1.0, 0), (-0.0, 0), (1e-40, 0), (float("nan"), 0), (1.0, 4)])
def test_sign_refuses_what_it_never_sends(s: float, signs: int) -> None:
    refused("sign", struct.pack("<fB", s, signs), 2)


# -- FedZip -------------------------------------------------------------------------------------------------


@given(longer)
def test_fedzip_errs_within_its_bound(values: Tensor) -> None:
    t, kept = least_kept(values), kept_of("fedzip", values)
    errors = error("fedzip", values)
    sent = values[kept].double()
    width = sent.max() - sent.min() if len(sent) else torch.tensor(0.0)
    assert (errors[kept] <= (width * (1 + 2.0**-23)).clamp(min=2.0**-149)).all()
    assert (errors == values.double().abs())[~kept].all()
    assert (errors <= t)[~kept].all()


def test_fedzip_is_lossless_on_few_values() -> None:
    choices = torch.linspace(-1, 1, 16) * 0.3
    values = torch.zeros(3 * BLOCK)
    places = torch.randperm(BLOCK, generator=torch.Generator().manual_seed(1))[:40]
    for start in range(0, 3 * BLOCK, BLOCK):
        values[start + places[:15]] = choices[1:]
        values[start + places[15:]] = choices[15]
    values[values == choices[7]] = 0
    assert torch.equal(trip("fedzip", values), values)


def test_fedzip_is_closer_than_top_k_in_less_room() -> None:
    values = normal(64 * BLOCK)
    kept = trip("topk", values) != 0
    assert error("fedzip", values)[kept].square().mean() < error("topk", values)[kept].square().mean() / 4
    payload = codec("fedzip").encode(values)
    assert 0.17 < 8 * len(payload) / len(values) < 0.19
    assert len(payload) < 0.8 * codec("topk").bytes_for(len(values))


def test_fedzip_of_one_value_is_these_bytes() -> None:
    payload = codec("fedzip").encode(torch.tensor([2.5]))
    head = struct.pack("<16f", 2.5, *[0.0] * 15) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + struct.pack("<2I", 1, 1)
    assert payload == head + b"\0"
    assert codec("fedzip").decode(payload, 1).tolist() == [2.5]


@pytest.mark.parametrize("n", [1, 5, 100, BLOCK + 3])
def test_fedzip_refuses_a_payload_with_any_bit_of_its_codes_in_disorder(n: int) -> None:
    """A flipped bit after the codebook is refused, or gives other finite values; it never passes for the same."""
    values = normal(n).round(decimals=1)
    payload = bytes(codec("fedzip").encode(values))
    before = codec("fedzip").decode(payload, n)
    for bit in range(8 * 64, 8 * len(payload), 7):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            codec("fedzip").peak(changed, n)
        except PayloadError:
            continue
        after = codec("fedzip").decode(changed, n)
        assert after.isfinite().all()
        assert not torch.equal(before, after) or n < KEPT


@given(st.data(), st.integers(1, 200))
@settings(max_examples=200)
def test_fedzip_takes_any_bytes_with_a_plausible_head(data: st.DataObject, n: int) -> None:
    head = np.zeros((), HEAD)
    head["book"] = 1.0
    head["lengths"] = data.draw(hnp.arrays(np.uint8, (2, 8), elements=st.sampled_from([0, 1, 0x11, 0x22, 0x21, 0x33])))
    head["bits"] = data.draw(hnp.arrays(np.uint32, 2, elements=st.integers(0, 1000) | st.just(2**32 - 1)))
    payload: Payload = head.tobytes() + data.draw(st.binary(max_size=300))
    try:
        codec("fedzip").peak(payload, n)
    except PayloadError:
        return
    values = codec("fedzip").decode(payload, n)
    assert values.shape == (n,)
    assert set(values.tolist()) <= {0.0, 1.0}
