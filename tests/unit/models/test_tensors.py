"""Names and shapes of tensors in a manifest: folded and unfolded, bounded, compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.node.manifest.tensors import TensorGroup, check_size, expand, first_difference, fold, layer_of, total
from shoal.protocol.base.errors import LocalError

DEEP = {
    "model.embed.weight": (300, 8),
    **{f"model.layers.{n}.{name}": shape for n in range(40) for name, shape in (("a.weight", (8, 8)), ("b", (8,)))},
    "model.norm.weight": (8,),
}


def test_layers_that_are_alike_are_written_once() -> None:
    folded = fold(DEEP)
    assert [(group.names[0], group.times) for group in folded] == [
        ("model.embed.weight", 1),
        ("model.layers.#.a.weight", 40),
        ("model.norm.weight", 1),
    ]
    assert dict(expand(folded)) == DEEP
    assert list(expand(folded)) == list(DEEP.items()), "in the order of the vector"
    assert total(folded) == 300 * 8 + 40 * 72 + 8


def test_a_long_list_of_layers_is_written_as_often_as_a_counter_ends() -> None:
    shapes = {f"a.{n}.w": (2,) for n in range(5000)}
    assert [(group.first, group.times, len(group.names)) for group in fold(shapes)] == [
        (0, 4096, 1),
        (4096, 1, 1),
        (0, 1, 903),
    ]
    assert dict(expand(fold(shapes))) == shapes


@pytest.mark.parametrize("name", ["", "a\n", "\x1b[2J", "\ud800", "__metadata__", "a" * 1001])
def test_a_name_that_cannot_be_is_named(name: str) -> None:
    with pytest.raises(LocalError, match="give it another one"):
        fold({"before": (1,), name: (1,)})


def test_a_layer_that_differs_stands_by_itself() -> None:
    shapes = {f"h.{n}.w": (4 if n == 2 else 3,) for n in range(5)}
    assert [(group.first, group.times) for group in fold(shapes)] == [(0, 2), (2, 1), (3, 2)]
    assert dict(expand(fold(shapes))) == shapes


names = st.builds(
    lambda parts: ".".join(parts),
    st.lists(
        st.sampled_from(
            ["a", "layers", "0", "1", "2", "7", "00", "01", "4096", "4097", "99999", "#", "a##b", "x y/ü", "٣"]
        ),
        min_size=1,
    ),
)


@given(st.dictionaries(names, st.tuples(st.integers(1, 3)), max_size=20))
def test_whatever_is_folded_unfolds_to_the_same(shapes: dict[str, tuple[int, ...]]) -> None:
    assert list(expand(fold(shapes))) == list(shapes.items())


@pytest.mark.parametrize(
    "group",
    [
        {"names": ("a",), "shapes": ((1,), (2,))},
        {"names": ("a",), "shapes": ((1,),), "times": 2},
        {"names": ("a\n",), "shapes": ((1,),)},
        {"names": ("",), "shapes": ((1,),)},
        {"names": ("__metadata__",), "shapes": ((1,),)},
        {"names": ("a" * 1001,), "shapes": ((1,),)},
        {"names": ("a##",), "shapes": ((1,),), "times": 2},
        {"names": (), "shapes": ()},
        {"names": ("a",), "shapes": ((-1,),)},
    ],
)
def test_a_group_that_makes_no_sense_is_refused(group: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TensorGroup.model_validate(group)


def test_more_than_any_machine_could_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        check_size([TensorGroup(names=("a#",), shapes=((1 << 30,),), times=4096)])
    with pytest.raises(ValueError, match="named twice"):
        check_size([TensorGroup(names=("a", "a"), shapes=((1,), (1,)))])
    check_size(fold(DEEP))


def test_the_first_difference_is_named() -> None:
    assert first_difference(DEEP, dict(DEEP)) == ""
    assert "model.norm.weight has shape (9,)" in first_difference({**DEEP, "model.norm.weight": (9,)}, DEEP)
    assert first_difference({**DEEP, "head": (1,)}, DEEP) == "the run lacks head"
    assert first_difference(DEEP, {**DEEP, "head": (1,)}) == "only the run has head"
    assert "stands where" in first_difference(dict(reversed(DEEP.items())), DEEP)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.up_proj.weight", 3),
        ("transformer.h.11.attn.c_attn.bias", 11),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 0),
        ("lm_head.weight", None),
        ("model.ch.3.weight", None),
    ],
)
def test_a_tensor_knows_its_layer(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer
