"""The flat vector and the named tensors are two views of the same numbers."""

from __future__ import annotations

import pytest
import torch

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import build
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError

SPEC = ModelSpec(vocab=17, dim=16, layers=1, heads=2, kv_heads=1, hidden=24)


def test_places_cover_the_vector_without_gaps_in_the_models_order() -> None:
    model = build(SPEC, 0)
    layout = Layout.of(model)
    assert [place.name for place in layout] == [name for name, _ in model.named_parameters()]
    assert [place.start for place in layout] == [0, *(place.stop for place in layout)][:-1]
    assert layout.size == sum(weight.numel() for weight in model.parameters())


def test_what_is_read_from_one_model_loads_into_another() -> None:
    source, target = build(SPEC, 1), build(SPEC, 2)
    layout = Layout.of(source)
    layout.load(layout.read(source), target)
    for left, right in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(left, right)


def test_views_share_memory_with_the_vector() -> None:
    layout = Layout({"a": (2, 2), "b": (3,)})
    flat = torch.zeros(7)
    layout.views(flat)["b"][1] = 5.0
    assert flat.tolist() == [0, 0, 0, 0, 0, 5, 0]


def test_pack_is_the_inverse_of_views_and_writes_in_place() -> None:
    layout = Layout({"a": (2, 2), "b": (3,)})
    flat, out = torch.arange(7.0), torch.empty(7)
    assert layout.pack(layout.views(flat), out) is out
    assert torch.equal(out, flat)


@pytest.mark.parametrize(
    "named",
    [
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(2, 2), "b": torch.zeros(3), "c": torch.zeros(1)},
        {"a": torch.zeros(4), "b": torch.zeros(3)},
    ],
    ids=["missing", "extra", "misshapen"],
)
def test_tensors_that_are_not_the_models_are_refused(named: dict[str, torch.Tensor]) -> None:
    with pytest.raises(LocalError):
        Layout({"a": (2, 2), "b": (3,)}).pack(named)


@pytest.mark.parametrize("flat", [torch.zeros(6), torch.zeros(7, dtype=torch.float64), torch.zeros(7, 1)])
def test_a_vector_of_another_size_or_type_is_refused(flat: torch.Tensor) -> None:
    with pytest.raises(LocalError):
        Layout({"a": (2, 2), "b": (3,)}).views(flat)
