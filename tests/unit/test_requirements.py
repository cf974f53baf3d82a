"""What a run needs is near what was measured, and counts the model to the last parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.layout import Layout
from shoal.node.manifest import CodecSpec, DataSpec, Manifest, ModelSpec, load_manifest
from shoal.node.method_spec import MethodSpec
from shoal.node.model import skeleton
from shoal.node.requirements import MIB, VALUE_BYTES, parameters, requirements
from shoal.protocol.compression import CODECS

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
    sizes = {name: codec.bytes_for(whole) / whole for name, codec in CODECS.items()}
    assert sizes == pytest.approx(VALUE_BYTES, abs=1e-4)  # a FedZip payload has a codebook besides


def test_traffic_approaches_twice_the_model_and_less_with_a_codec() -> None:
    count = parameters(STDLIB.model)
    assert requirements(STDLIB, 1).sent == 0
    assert requirements(STDLIB, 4).sent == 6 * count  # 6.0 bytes per parameter: as `shoal up` counts with four
    assert requirements(STDLIB, 10_000).sent == pytest.approx(8 * count, rel=0.001)
    small = STDLIB.model_copy(update={"codec": CodecSpec(scatter="int8", gather="int8")})
    assert requirements(small, 10_000).sent == pytest.approx(2 * count, rel=0.01)
