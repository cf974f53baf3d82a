"""Twelve types of the library's causal models through their whole life, of all that benchmarks/models.py tries.

Founded, trained for two rounds, exported, compared with what `save_pretrained` writes, opened by the library, served.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from shoal.node.base.home import Home
from shoal.node.inference.served import ServeOptions
from shoal.node.inference.source import open_source
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.training.models import hf, hf_kind, registry
from shoal.node.training.models.hf import HfModel, digest_of, untrained
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from tests.hf_kit import TABLE, needs

transformers = needs("transformers")

from kit.model_trial import REFUSED, UNTRIED, WORKS, attempt  # noqa: E402
from kit.toys import shrunk, toy  # noqa: E402

from tests.run_kit import first_weights  # noqa: E402

ME = PeerId("12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ")
TYPES = {
    "mixtral": "experts that its files have one by one",
    "qwen3_moe": "the same",
    "hunyuan_v1_moe": "the same, under names of its author's",
    "gpt_neox": "names that its files have otherwise",
    "minimax": "a saved buffer",
    "glm4_moe": "a saved buffer for each router",
    "ernie4_5_moe": "frozen parameters of its own",
    "pegasus": "frozen positions",
    "mamba2": "a number in its config that JSON has no word for",
    "jamba": "layers of several kinds",
    "zamba2": "sizes that the library works out of others",
    "xlnet": "causal if its config says so, by another word than is_decoder",
}


LIKE_OTHERS = ("qwen3_moe", "hunyuan_v1_moe", "ernie4_5_moe", "jamba")  # in most that could go wrong


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(each, marks=[pytest.mark.slow] if each in LIKE_OTHERS else []) for each in TYPES],
)
def test_its_life(model_type: str) -> None:
    verdict = attempt(model_type)
    assert verdict.what == WORKS, verdict


def test_a_type_that_the_library_saves_but_cannot_open_again_is_refused() -> None:
    verdict = attempt("emu3")
    assert (verdict.what, verdict.where) == (REFUSED, "open"), verdict
    assert "cannot open again" in verdict.reason


def test_a_type_whose_config_the_library_cannot_compute_with_is_not_tried_and_not_refused() -> None:
    """Another config of it may do: what is refused is what no config makes right."""
    verdict = attempt("dbrx")
    assert (verdict.what, verdict.where) == (UNTRIED, "build"), verdict
    assert "rope_theta" in verdict.reason, verdict


@pytest.mark.parametrize(
    ("before", "shrunk_to"),
    [
        ({"num_attention_heads": 64, "num_key_value_heads": 4}, {"num_attention_heads": 4, "num_key_value_heads": 1}),
        ({"num_attention_heads": 32, "num_key_value_heads": 32}, {"num_attention_heads": 4, "num_key_value_heads": 4}),
        ({"num_hidden_layers": 35, "num_kv_shared_layers": 15}, {"num_hidden_layers": 4, "num_kv_shared_layers": 1}),
        ({"num_layers": 6, "layer_types": list("aaabbc")}, {"num_layers": 4, "layer_types": list("abca")}),
        (
            {"head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64},
            {"head_dim": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16},
        ),
        (
            {"num_layers": 6, "layer_types": list("aabaab"), "per_layer_config": {"02": {"heads": 8}, "05": {}}},
            {"num_layers": 4, "layer_types": list("abab"), "per_layer_config": {"1": {"heads": 4}, "3": {"heads": 4}}},
        ),
        ({"languages": ["en", "de"], "default_language": None}, {"languages": ["en", "de"], "default_language": "en"}),
    ],
)
def test_toys_keep_the_parts_that_belong_together(before: dict[str, Any], shrunk_to: dict[str, Any]) -> None:
    assert shrunk(before) == shrunk_to


def manifest(table: dict[str, Any]) -> Manifest:
    return Manifest(name="toy", seed=3, model=HfSpec(name="hf", config=json.dumps(table), context=16))


def test_what_stands_still_is_the_same_on_every_member_whatever_their_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the library draws it at random, as it does the frozen positions of this one's ears."""
    whole, _ = first_weights(manifest(toy("moss_transcribe_diarize")), (), Home(tmp_path).create())
    assert isinstance(whole.model, HfSpec)
    assert whole.model.frozen
    one, other = (registry.kind_of(whole.model).build(whole.model, seed) for seed in (1, 2))
    assert isinstance(one, HfModel)
    assert isinstance(other, HfModel)
    assert digest_of(untrained(one.network)) == digest_of(untrained(other.network)) == whole.model.base
    monkeypatch.setattr(hf_kind, "CONFIG_SEED", 1)  # as another version of torch would draw
    with pytest.raises(LocalError, match="other frozen numbers"):
        registry.build(whole)


class Counting(nn.Module):
    """Notes how often it was called, as running means do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.inner = network
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: torch.Tensor, **more: Any) -> Any:
        self.calls += 1
        return self.inner(input_ids=input_ids, **more)


def test_a_model_that_changes_its_buffers_as_it_trains_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hf.network_of

    def counting(spec: HfSpec, seed: int) -> nn.Module:
        network: Any = Counting(real(spec, seed))
        network.config = network.inner.config
        return network  # type: ignore[no-any-return]

    monkeypatch.setattr(hf_kind, "network_of", counting)
    home = Home(tmp_path).create()
    with pytest.raises(LocalError, match="changes calls as it trains"):
        first_weights(manifest(toy("llama")), (), home)
    assert not list(home.runs.iterdir()) if home.runs.exists() else True


def saved(folder: Path, model_type: str) -> Path:
    table = toy(model_type)
    config = transformers.AutoConfig.for_model(table.pop("model_type"), **table)
    with torch.random.fork_rng(devices=()):
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def test_a_folder_without_buffers_opens_as_it_does_for_the_library_and_one_without_weights_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(tmp_path / "model", "glm4_moe")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    buffers = [name for name in tensors if name.endswith("e_score_correction_bias")]
    assert buffers
    save_file({name: each for name, each in tensors.items() if name not in buffers}, file, {"format": "pt"})
    with caplog.at_level(logging.WARNING, "shoal.models"):
        open_source(folder, ServeOptions("cpu", slots=1, tokenizer="bytes"))
    assert buffers[0] in caplog.text
    save_file({name: each for name, each in tensors.items() if "q_proj" not in name}, file, {"format": "pt"})
    with pytest.raises(LocalError, match=r"lacks the model's .*q_proj"):
        open_source(folder, ServeOptions("cpu", slots=1, tokenizer="bytes"))


def test_a_folder_whose_config_has_an_infinite_number_opens(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "mamba2")
    config = (folder / "config.json").read_text()
    assert "__float__" in config
    open_source(folder, ServeOptions("cpu", slots=1, tokenizer="bytes"))
    assert first_weights(manifest(json.loads(config)), (), Home(tmp_path).create())


def test_types_that_fetch_code_are_refused_where_they_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "find_spec", lambda name: name)
    with pytest.raises(LocalError, match="fetch code from the hub"):
        first_weights(manifest({**toy("rwkv")}), (), Home(tmp_path).create())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_code_that_a_folders_config_names_is_not_looked_at(key: str) -> None:
    config = hf.config_of({**TABLE, key: "somebody/kernel", "_attn_implementation_internal": "somebody/kernel"})
    assert "somebody/kernel" not in vars(config).values()
    part = {"model_type": "siglip_vision_model", key: "somebody/kernel"}
    whole = hf.config_of({"model_type": "gemma3", "text_config": {key: "somebody/kernel"}, "vision_config": part})
    for each in (whole, whole.text_config, whole.vision_config):
        assert "somebody/kernel" not in vars(each).values()


def test_a_quantized_model_that_would_fetch_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "find_spec", lambda name: name)
    with pytest.raises(LocalError, match="quantized models may fetch code from the hub"):
        hf.config_of({**TABLE, "quantization_config": {"quant_method": "metal"}})
