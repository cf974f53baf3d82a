"""Models of Hugging Face in a manifest: data only, bounded, canonical; and what the founder fills in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base.toml import dump
from shoal.node.manifest.inlining import with_config
from shoal.node.manifest.manifest import (
    Manifest,
    check_manifest,
    decode_manifest,
    load_manifest,
    parse_manifest,
)
from shoal.node.manifest.method import MethodSpec
from shoal.node.manifest.model import HfSpec, LoraSpec, ModelSpec
from shoal.node.manifest.requirements import parameters, requirements
from shoal.node.manifest.tensors import fold
from shoal.node.run.founding import check_begins
from shoal.protocol.base.errors import LocalError, RemoteError
from tests.hf_kit import CONFIG, TABLE
from tests.run_kit import AUTHOR, id_of, on_paper

BUILT_IN = "5e70da617d79055876d604e3c3aca824dd1f74c6c9a6bec4bfd22fc0f5f60932"
TENSORS = fold({"e": (256, 16), **{f"model.layers.{n}.w": (16, 16) for n in range(2)}})


def manifest(**model: Any) -> Manifest:
    return Manifest(name="a", model=HfSpec(name="hf", config=json.dumps(TABLE), **model))


def test_run_ids_of_manifests_from_before_are_what_they_were() -> None:
    assert Manifest(name="golden").digest.hex() == BUILT_IN
    assert isinstance(Manifest(name="golden").model, ModelSpec)


def test_a_config_is_a_table_or_json_and_one_to_the_byte() -> None:
    table = parse_manifest(f'name = "a"\n[model]\nname = "hf"\nconfig = {CONFIG}')
    text = parse_manifest(f'name = "a"\n[model]\nname = "hf"\nconfig = {json.dumps(json.dumps(TABLE, indent=2))}')
    assert table == text == manifest()
    assert id_of(table) == id_of(text)


def test_what_no_run_depends_on_is_left_out() -> None:
    noisy = {**TABLE, "_name_or_path": "/home/me", "transformers_version": "4.1", "torch_dtype": "bfloat16"}
    noisy |= {"num_labels": 10**9, "id2label": {"0": "LABEL_0"}, "label2id": {"a": 1}}
    assert Manifest(name="a", model=HfSpec(name="hf", config=json.dumps(noisy))) == manifest()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**TABLE, "auto_map": {"AutoModel": "x--y.Z"}}, "`auto_map`"),
        ({**TABLE, "text_config": {"auto_map": "x"}}, "`auto_map`"),
        ({**TABLE, "_attn_implementation": "kernels-community/x"}, "`_attn_implementation`"),
        ({**TABLE, "quantization_config": {"bits": 4}}, "`quantization_config`"),
        ({**TABLE, "num_hidden_layers": 10**9}, "at most 1024"),
        ({**TABLE, "_private": 1}, "`_private`"),
        ({**TABLE, "vocab_size": 1 << 40}, "at most 2,147,483,648"),
        ({**TABLE, "sizes": [1 << 30]}, "at most 1,048,576"),
        ({**TABLE, "num_layers": 1000, "text_config": {"num_experts": 1000}}, "1,000,000 experts"),
        ({**TABLE, "rope_theta": float("nan")}, "no number"),
        ({"hidden_size": 8}, "model_type"),
        ({**TABLE, "a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}, "too deeply"),
        ({**TABLE, "x": "y" * 30_000}, "24,576"),
        ("config.json", "is no config"),
        ("{", "Expecting"),
    ],
)
def test_a_config_that_is_more_than_data_or_too_much_is_refused(config: object, sentence: str) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    with pytest.raises(LocalError, match=sentence):
        parse_manifest(dump({"name": "a", "model": {"name": "hf", "config": text}}))


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 24, "num_experts": 60, "shared_expert_intermediate_size": 5632},  # Qwen2-MoE's own
        {"num_layers": 28, "n_routed_experts": 512, "expert_ffn_hidden_size": 2048},  # LongCat-Flash's
        {"num_hidden_layers": 30, "vocab_size_per_layer_input": 262_144},  # Gemma 3n's
        {"num_hidden_layers": 1024, "num_experts": 32, "expert_capacity": 4096, "layer_dim": 2048},
    ],
)
def test_what_says_how_large_a_layer_or_an_expert_is_counts_none(sizes: dict[str, int]) -> None:
    config = json.dumps({**TABLE, **sizes})
    assert parse_manifest(dump({"name": "a", "model": {"name": "hf", "config": config}})).model.layers == 0


def test_a_stranger_cannot_send_what_is_not_canonical() -> None:
    import msgpack

    table = msgpack.unpackb(manifest(tensors=TENSORS).canonical())
    table["model"]["config"] = json.dumps(TABLE, indent=1)
    data = msgpack.packb(table)
    with pytest.raises(RemoteError, match="canonical"):
        decode_manifest(data)


def test_a_stranger_cannot_begin_with_nothing() -> None:
    for bare in (manifest(tensors=TENSORS, vocab=256), manifest()):
        with pytest.raises(RemoteError, match="not its first weights"):
            check_manifest(on_paper(bare).genesis, AUTHOR.signer(id_of(bare)))
        with pytest.raises(LocalError, match="not its first weights"):
            check_begins(bare)
    check_begins(Manifest(name="a"))


def test_a_whole_manifest_goes_over_the_wire_and_through_toml() -> None:
    whole = manifest(tensors=TENSORS, vocab=256, lora=LoraSpec(targets=("q",)), frozen=9, base="ab" * 32)
    assert decode_manifest(whole.canonical()) == whole
    assert parse_manifest(dump(whole.model_dump(mode="json"))) == whole


def test_what_a_founder_fills_in_makes_it_its_run() -> None:
    bare, whole = manifest(), manifest(tensors=TENSORS, vocab=256)
    assert whole.completes(bare)
    assert not bare.completes(whole)
    assert not whole.completes(manifest(context=64))
    assert (bare.model.is_complete, whole.model.is_complete) == (False, True)


def test_its_size_is_known_without_building_it() -> None:
    whole = manifest(tensors=TENSORS, vocab=256)
    assert parameters(whole.model) == 256 * 16 + 2 * 256
    needs = requirements(whole, members=3)
    assert needs.state == 2 * 4 * (256 * 16 + 2 * 256)
    frozen = manifest(tensors=TENSORS, vocab=256, lora=LoraSpec(targets=("q",)), frozen=10**9)
    assert requirements(frozen, 3).worker_memory - needs.worker_memory == 4 * 10**9


def test_text_that_becomes_tokens_takes_more_memory() -> None:
    size = 1 << 30
    data = {"name": "files", "digest": "ab" * 32, "pieces": "cd" * 32, "size": size}
    plain, none = (Manifest.model_validate({"name": "a", "data": each}) for each in (data, {"name": "files"}))
    tokens = Manifest.model_validate({"name": "a", "data": {**data, "tokenizer": "tokenizer.json"}})
    needed = [requirements(each, members=2).worker_memory for each in (none, plain, tokens)]
    assert (needed[1] - needed[0], needed[2] - needed[1]) == (3 * size, 2 * 4 * size + (128 << 20))


def test_fragments_need_layers() -> None:
    streaming = MethodSpec(name="streaming-diloco", inner_steps=30, strides=3, delay=1)
    manifest().model_copy(update={"method": streaming})
    with pytest.raises(ValueError, match="the model has 2 layers"):
        Manifest(name="a", model=manifest(tensors=TENSORS).model, method=streaming)


def test_a_path_is_read_before_the_text_goes_anywhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TABLE, "rope_scaling": None}, indent=2))
    file = tmp_path / "run.toml"
    file.write_text('name = "a"\n[model]\nname = "hf"\nconfig = "config.json"\n[rounds]\nlast = 3\n')
    read = load_manifest(file)
    assert isinstance(read.model, HfSpec)
    assert read.model.table == {**TABLE, "rope_scaling": None}
    assert read.rounds.last == 3
    with pytest.raises(LocalError, match="cannot read model"):
        with_config(file.read_text(), tmp_path / "elsewhere")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(LocalError, match="is not JSON"):
        load_manifest(file)
    plain = 'name = "a" # as it is\n'
    assert with_config(plain, tmp_path) == plain
    assert with_config("[", tmp_path) == "["
