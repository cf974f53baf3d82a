"""Fragments divide the vector: layers are dealt out, and parameters of no layer go into the last fragment."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.manifest.tensors import layer_of
from shoal.node.training.methods.fragments import Fragment, fragments
from shoal.node.training.models.decoder import skeleton
from shoal.node.training.models.layout import Layout

TOY = Layout({"e": (3,), "layers.0.a": (2,), "layers.0.b": (2,), "layers.1.a": (4,), "layers.2.a": (4,), "norm": (1,)})
EQUAL = Layout({f"layers.{each}.weight": (5, 2) for each in range(12)})


def fragment_bytes(parts: tuple[Fragment, ...], value_bytes: float = 4) -> tuple[float, ...]:
    """The bytes that each fragment's exchange sends one way, uncompressed; the greatest is the peak."""
    return tuple(part.size * value_bytes for part in parts)


def model(layers: int, tied: bool = True) -> Layout:
    return Layout.of(skeleton(ModelSpec(vocab=17, dim=16, layers=layers, heads=2, kv_heads=1, hidden=24, tied=tied)))


def test_layers_are_strided_and_neighbours_merged() -> None:
    assert fragments(TOY, 2) == (
        Fragment(((3, 7), (11, 15))),  # layers 0 and 2
        Fragment(((7, 11),)),
        Fragment(((0, 3), (15, 16))),
    )
    assert fragments(TOY, 1) == (Fragment(((0, 16),)),)


def test_layers_that_lie_side_by_side_are_one_range() -> None:
    layout = Layout({"layers.0.a": (2,), "layers.2.a": (3,), "layers.1.a": (4,)})
    assert fragments(layout, 2) == (Fragment(((0, 5),)), Fragment(((5, 9),)))


@given(st.integers(2, 9), st.data(), st.booleans())
def test_each_number_is_in_one_fragment(layers: int, data: st.DataObject, tied: bool) -> None:
    layout = model(layers, tied)
    parts = fragments(layout, data.draw(st.integers(1, layers)))
    hits = torch.zeros(layout.size)
    for part in parts:
        assert all(left[1] < right[0] for left, right in pairwise(part.ranges))
        hits = hits + part.put(torch.zeros(layout.size), torch.ones(part.size))
    assert torch.equal(hits, torch.ones(layout.size))


def test_each_tensor_of_a_model_is_where_its_layer_is() -> None:
    layout = model(5, tied=False)
    parts = fragments(layout, 3)
    assert len(parts) == 4
    for place in layout:
        layer = layer_of(place.name)
        part = parts[3 if layer is None else layer % 3]
        assert any(start <= place.start and place.stop <= stop for start, stop in part.ranges)
    loose = [place.name for place in layout if layer_of(place.name) is None]
    assert loose == ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


def test_what_is_put_is_what_is_taken_and_the_rest_stays() -> None:
    flat = torch.arange(16.0)
    part = fragments(TOY, 2)[0]
    assert part.take(flat).tolist() == [3, 4, 5, 6, 11, 12, 13, 14]
    new = part.put(flat, -part.take(flat))
    assert new.tolist() == [0, 1, 2, -3, -4, -5, -6, 7, 8, 9, 10, -11, -12, -13, -14, 15]
    assert flat.tolist() == list(range(16))
    with pytest.raises(ValueError, match="cannot hold"):
        part.put(flat, flat)


@pytest.mark.parametrize("strides", [1, 2, 3, 4, 6, 12])
def test_the_peak_of_equal_fragments_is_an_nth_of_the_whole(strides: int) -> None:
    bytes_ = fragment_bytes(fragments(EQUAL, strides))
    assert bytes_ == (4 * EQUAL.size / strides,) * strides
    assert max(fragment_bytes(fragments(EQUAL, strides), 0.5)) == EQUAL.size / 2 / strides


def test_the_bytes_of_a_model_add_up() -> None:
    layout = model(4)
    layer = sum(place.stop - place.start for place in layout if layer_of(place.name) == 0)
    assert fragment_bytes(fragments(layout, 2)) == (8 * layer, 8 * layer, 4 * (layout.size - 4 * layer))


@pytest.mark.parametrize("strides", [-1, 0, 4])
def test_what_cannot_be_cut_is_refused(strides: int) -> None:
    with pytest.raises(ValueError, match="fragment"):
        fragments(TOY, strides)
