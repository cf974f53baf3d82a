"""The estimated needs of a run are near measured ones, and parameters are counted exactly."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from shoal.node.manifest.codec import CODECS, RunCodec
from shoal.node.manifest.manifest import CodecSpec, DataSpec, Manifest, ModelSpec, load_manifest
from shoal.node.manifest.method import REPLICA_METHODS, MethodSpec
from shoal.node.manifest.requirements import (
    MIB,
    bytes_per_parameter,
    parameters,
    requirements,
    vectors_of,
)
from shoal.node.training.methods.registry import METHODS, method_of
from shoal.node.training.models.decoder import skeleton
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import layout_of
from shoal.protocol.tensors import compression

STDLIB = load_manifest(Path(__file__).parents[2] / "examples/stdlib.toml")
LARGER = ModelSpec(dim=512, layers=8, heads=8, kv_heads=4, hidden=1408, context=64)
BIG = Manifest(name="big", model=LARGER, method=MethodSpec(inner_steps=2, batch=4), codec=CodecSpec(scatter="int8"))
WIDE = Manifest(  # that of benchmarks/memory.py --mib 96 --checkpoint-every 2
    name="wide", model=ModelSpec(vocab=96 << 11, dim=128, layers=1, heads=4, kv_heads=4, hidden=8, context=8)
)


@pytest.mark.parametrize(
    "spec",
    [
        STDLIB.model,
        LARGER,
        LARGER.model_copy(update={"tied": False}),
        ModelSpec(vocab=7, dim=32, layers=1, heads=4, kv_heads=1, hidden=8),
    ],
)
def test_parameters_are_counted_as_the_model_has_them(spec: ModelSpec) -> None:
    assert parameters(spec) == Layout.of(skeleton(spec)).size


@pytest.mark.parametrize(
    ("manifest", "worker", "sent"), [(STDLIB, 439, 3_281_408 / MIB), (BIG, 1304, 59_378_208 / MIB)]
)
def test_estimates_are_near_what_two_members_really_used(manifest: Manifest, worker: float, sent: float) -> None:
    needs = requirements(manifest, members=2)
    assert needs.worker_memory / MIB == pytest.approx(worker, rel=0.1)
    assert needs.sent / MIB == pytest.approx(sent, rel=0.01)
    assert needs.received == needs.sent


@pytest.mark.parametrize(("manifest", "node"), [(STDLIB, 441), (WIDE, 1386)])
def test_a_node_takes_about_as_much_as_was_measured(manifest: Manifest, node: float) -> None:
    assert requirements(manifest, members=2).node_memory / MIB == pytest.approx(node, rel=0.1)


def test_who_trains_has_the_text_in_memory() -> None:
    data = DataSpec(name="files", digest="a" * 64, pieces="b" * 64, size=1 << 30)
    with_text = requirements(STDLIB.model_copy(update={"data": data}), members=2)
    without = requirements(STDLIB, members=2)
    assert with_text.worker_memory - without.worker_memory == 3 << 30
    assert with_text.node_memory == without.node_memory


def test_every_codec_is_counted_as_it_writes() -> None:
    whole = 1 << 20
    sizes = {name: codec.bytes_for(whole) / whole for name, codec in compression.CODECS.items()}
    assert sizes == pytest.approx({name: codec.value_bytes for name, codec in CODECS.items()}, abs=1e-4)
    assert tuple(sizes) == tuple(CODECS) == get_args(RunCodec), "a manifest may name each codec, and no other"


def test_traffic_approaches_twice_the_model_and_less_with_a_codec() -> None:
    count = parameters(STDLIB.model)
    assert requirements(STDLIB, 1).sent == 0
    assert requirements(STDLIB, 4).sent == 6 * count  # 6.0 bytes per parameter: as `shoal up` counts with four
    assert requirements(STDLIB, 10_000).sent == pytest.approx(8 * count, rel=0.001)
    small = STDLIB.model_copy(update={"codec": CodecSpec(scatter="int8", gather="int8")})
    assert requirements(small, 10_000).sent == pytest.approx(2 * count, rel=0.01)


# -- by method ----------------------------------------------------------------------------------------------


def of_method(name: str, **settings: int) -> Manifest:
    return Manifest(name="a", model=STDLIB.model, method=MethodSpec(name=name, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_vectors_are_counted_as_the_method_names_them(name: str) -> None:
    manifest = of_method(name)
    layout = layout_of(manifest.model)
    method, count = method_of(manifest, layout), vectors_of(manifest)
    agreed, private = method.begin(torch.zeros(layout.size))
    assert (count.agreed, count.reads, count.keeps) == (len(agreed), len(method.reads), len(method.keeps))
    assert count.answers == int(method.merges_answers)
    assert count.private >= len(private)
    assert (count.inner == 0) == method.wants_gradients
    assert requirements(manifest, 2).state == len(agreed) * 4 * layout.size


def test_a_round_of_fragments_carries_one_of_them() -> None:
    count = parameters(STDLIB.model)
    whole, parted = of_method("streaming-diloco", strides=1), of_method("streaming-diloco", strides=4, inner_steps=20)
    assert requirements(whole, 2).sent == pytest.approx(count * (CODECS["fp4"].value_bytes + 4) / 2, abs=1)
    assert requirements(parted, 2).sent == pytest.approx(requirements(whole, 2).sent / 5, abs=1)


def test_what_is_sent_for_a_parameter_follows_from_the_codecs_of_the_method() -> None:
    there = {"sparseloco": CODECS["topk"].value_bytes, "streaming-diloco": CODECS["fp4"].value_bytes / 3}
    back = {"streaming-diloco": 4 / 3}
    for name in sorted(METHODS.keys() - set(REPLICA_METHODS)):
        expected = 3 / 4 * (there.get(name, 4) + back.get(name, 4))
        assert bytes_per_parameter(of_method(name), 4) == pytest.approx(expected)


def test_two_replicas_exchange_in_full_what_they_send() -> None:
    for members, share in ((1, 0.0), (2, 1.0), (3, 2 / 3), (10, 1.0)):
        assert bytes_per_parameter(of_method("noloco"), members) == pytest.approx(8 * share)
        assert bytes_per_parameter(of_method("gossip"), members) == pytest.approx(4 * share)
    narrow = of_method("noloco").model_copy(update={"codec": CodecSpec(scatter="int8", gather="fp16")})
    assert bytes_per_parameter(narrow, 2) == CODECS["int8"].value_bytes + CODECS["fp16"].value_bytes
