"""Models of transformers: built from a config alone, named, trained, kept, exported; and adapters on a frozen one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.node.base import extra
from shoal.node.base.home import Home
from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.manifest.model import HfSpec, LoraSpec
from shoal.node.manifest.tensors import expand
from shoal.node.training.checkpoint.export import export
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models import hf, hf_kind, registry
from shoal.node.training.models.hf import HfModel, quietly, skeleton
from shoal.node.training.models.layout import Layout
from shoal.node.training.state.outer import OuterState
from shoal.node.training.trainer.evaluate import validation_loss
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, digest
from tests.hf_kit import TABLE, base_folder, needs
from tests.run_kit import first_weights

transformers = needs("transformers")

ME = PeerId("12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ")
TEXT = torch.frombuffer(bytearray(b"one sheep, two sheep, three sheep on the hill. " * 40), dtype=torch.uint8)
TOKENS = torch.arange(24).view(2, 12) * 7 % 256
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "vocab_size": 256,
}
LORA = LoraSpec(rank=2, targets=("q_proj", "v_proj"), base="seed")


def manifest(table: dict[str, Any] = TABLE, seed: int = 3, lora: LoraSpec | None = None, **method: Any) -> Manifest:
    usual: dict[str, Any] = {"inner_steps": 6, "batch": 4, "inner_lr": 1e-2, "warmup_steps": 1}
    model = HfSpec(name="hf", config=json.dumps(table), context=16, lora=lora)
    return Manifest(name="tiny", seed=seed, model=model, method=MethodSpec(**usual | method))


def founded(folder: Path, run: Manifest | None = None, weights: tuple[Path, ...] = ()) -> tuple[Manifest, Checkpoint]:
    return first_weights(run or manifest(), weights, Home(folder / "home").create())


def corpus() -> Corpus:
    return Corpus(TEXT, TEXT[:200], digest("corpus"), 1, 0)


def weights_of(checkpoint: Checkpoint) -> Tensor:
    return checkpoint.vectors[PARAMETERS]


@pytest.mark.parametrize(
    "table", [TABLE, GPT2, BERT | {"is_decoder": True}], ids=lambda table: str(table["model_type"])
)
def test_a_founder_names_every_tensor_once_and_makes_the_first_weights(tmp_path: Path, table: dict[str, Any]) -> None:
    whole, checkpoint = founded(tmp_path, manifest(table))
    assert isinstance(whole.model, HfSpec)
    network = skeleton(whole.model)
    theirs = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    assert dict(expand(whole.model.tensors)) == theirs
    assert not {"lm_head.weight", "cls.predictions.decoder.weight"} & theirs.keys(), "a tied head is the embedding"
    assert (whole.model.vocab, whole.model.layers) == (256, 2)
    assert whole.origin is not None
    assert (whole.origin.round, whole.first_round) == (0, 1)
    assert OuterState(whole, checkpoint.committed()).root.hex() == whole.origin.root
    assert weights_of(checkpoint).std() > 0.01


def test_who_joins_needs_no_library_for_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, checkpoint = founded(tmp_path)
    monkeypatch.setattr(extra, "transformers", lambda: pytest.fail("was asked for"))
    joiner = OuterState(whole)
    assert joiner.root != OuterState(whole, checkpoint.committed()).root, "it is to be downloaded"
    assert joiner.committed.current.vectors[PARAMETERS].shape == weights_of(checkpoint).shape


def test_a_seed_gives_the_same_weights_again_and_another_seed_others(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = torch.rand(1)
    torch.manual_seed(1)
    one, again, other = (
        weights_of(founded(tmp_path / str(n), manifest(seed=seed))[1]) for n, seed in enumerate((3, 3, 4))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.rand(1), first), "nobody else's random numbers are used"


def test_a_library_that_makes_another_model_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = founded(tmp_path)
    assert isinstance(whole.model, HfSpec)
    wider = whole.model.model_copy(update={"config": json.dumps({**TABLE, "intermediate_size": 48})})
    with pytest.raises(LocalError, match=r"layers\.0\.mlp\.gate_proj\.weight has shape \(48, 16\), and \(32, 16\)"):
        registry.build(whole.model_copy(update={"model": wider}))
    monkeypatch.setattr(hf_kind, "fresh", lambda *_: pytest.fail("memory was asked for"))
    with pytest.raises(LocalError, match=r"layers\.0"):
        registry.build(whole.model_copy(update={"model": wider}))
    with monkeypatch.context() as lesser:
        lesser.setattr(hf, "MAX_BUFFERS", 8)
        with pytest.raises(LocalError, match="bytes of buffers"):
            registry.build(whole)
    for wrong, sentence in (({"vocab": 300}, "vocab is 300"), ({"context": 128}, "sees 64 tokens at most")):
        with pytest.raises(LocalError, match=sentence):
            registry.build(whole.model_copy(update={"model": whole.model.model_copy(update=wrong)}))
    with pytest.raises(LocalError, match="shoal run create"):
        registry.layout_of(manifest().model)


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def lacking(name: str, *more: Any) -> Any:
        if name.partition(".")[0] in ("transformers", "tokenizers", "peft", "datasets", "pyarrow"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    for ask in (extra.transformers, extra.peft, extra.tokenizers, extra.parquet, extra.datasets):
        with pytest.raises(LocalError, match=re.escape(extra.INSTALL)):
            ask()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_learns(tmp_path: Path, optimizer: str) -> None:
    whole, checkpoint = founded(tmp_path, manifest(optimizer=optimizer, inner_steps=20))
    trainer = InnerTrainer(whole, corpus())
    trainer.load(weights_of(checkpoint))
    before = validation_loss(trainer.model, TEXT[:200], 16).loss
    assert trainer.train(1, [0]).steps == 20
    assert validation_loss(trainer.model, TEXT[:200], 16).loss < 0.8 * before
    assert trainer.model.training, "evaluation leaves it as it was"
    assert trainer.flops_utilization(1.0) is None


def test_dropout_is_off_where_it_is_validated(tmp_path: Path) -> None:
    whole, _ = founded(tmp_path, manifest({**GPT2, "embd_pdrop": 0.5}))
    model = registry.build(whole)
    assert len({validation_loss(model, TEXT[:100], 16).loss for _ in range(3)}) == 1


def test_recomputed_activations_give_the_same_gradient(tmp_path: Path) -> None:
    whole, checkpoint = founded(tmp_path)
    gradients = []
    for recompute in (False, True):
        trainer = InnerTrainer(whole, corpus(), options=TrainerOptions(recompute=recompute))
        trainer.load(weights_of(checkpoint))
        out = torch.empty(trainer.layout.size)
        trainer.gradient(1, [0], 0, out)
        gradients.append(out)
    torch.testing.assert_close(*gradients)


def test_transformers_opens_what_is_exported_with_the_same_logits(tmp_path: Path) -> None:
    whole, checkpoint = founded(tmp_path, manifest(GPT2))
    export(checkpoint.path, tmp_path / "out")
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert opened.config.use_cache, "who generates with it does not compute all anew for each token"
    ours = registry.build(whole)
    assert isinstance(ours, HfModel)
    assert not ours.network.config.use_cache
    checkpoint.shape.layout.load(weights_of(checkpoint), ours)
    ours.eval()
    with torch.inference_mode():
        assert torch.equal(opened(TOKENS).logits, ours(TOKENS))


def test_a_mixture_of_experts_is_balanced_in_training_only(tmp_path: Path) -> None:
    table = {
        **{key: value for key, value in TABLE.items() if key != "tie_word_embeddings"},
        "model_type": "mixtral",
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    }
    model = registry.build(founded(tmp_path, manifest(table))[0])
    assert isinstance(model, HfModel)
    trained = model.loss(TOKENS)
    model.eval()
    assert trained > model.loss(TOKENS) + 0.1


JETMOE = {
    "model_type": "jetmoe",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "kv_channels": 8,
    "intermediate_size": 32,
    "aux_loss_coef": 0.5,
}
DBRX = {
    "model_type": "dbrx",
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "max_seq_len": 32,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
    "ffn_config": {"hidden_size": 16, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_loss_weight": 0.5},
}


@pytest.mark.parametrize("table", [JETMOE, DBRX], ids=lambda table: table["model_type"])
def test_the_balance_weighs_what_the_type_calls_it(table: dict[str, Any]) -> None:
    with quietly(), torch.random.fork_rng(devices=()):
        config = hf.config_of({**table, "vocab_size": 256, "output_router_logits": True})
        model = HfModel(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    trained = model.train().loss(TOKENS)
    assert trained > model.eval().loss(TOKENS) + 0.1


def test_a_balance_that_nothing_weighs_is_refused(tmp_path: Path) -> None:
    table = {**TABLE, "model_type": "granitemoe", "output_router_logits": True, "router_aux_loss_coef": None}
    with pytest.raises(LocalError, match="type granitemoe do not say what the balance of their router weighs"):
        founded(tmp_path, manifest(table))


# -- adapters -----------------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    needs("peft")
    return base_folder(tmp_path / "base")


def frozen(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters() if not each.requires_grad}


def test_only_adapters_are_trained_and_the_base_stays_as_it_is_to_the_bit(tmp_path: Path, base: Path) -> None:
    run = manifest(lora=LORA.model_copy(update={"base": "weights"}))
    whole, checkpoint = founded(tmp_path, run, (base,))
    assert isinstance(whole.model, HfSpec)
    assert whole.model.parameters == 2 * (2 * (16 + 16) + 2 * (16 + 8))  # layers, rank, q_proj, v_proj
    trainer = InnerTrainer(whole, corpus(), options=TrainerOptions(weights=(str(base),)))
    trainer.load(weights_of(checkpoint))
    before = frozen(trainer.model)
    assert sum(each.numel() for each in before.values()) == whole.model.frozen
    trainer.train(1, [0])
    after = frozen(trainer.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(trainer.read(), weights_of(checkpoint))
    moments = torch.zeros(1 + 2 * trainer.layout.size)
    trainer.store(moments)
    assert moments[0] == 6


def test_peft_opens_exported_adapters_with_the_same_logits(tmp_path: Path, base: Path) -> None:
    peft = needs("peft")
    whole, checkpoint = founded(tmp_path, manifest(lora=LORA.model_copy(update={"base": "weights"})), (base,))
    moved = torch.arange(checkpoint.shape.layout.size) % 7 * 0.01
    weights_of(checkpoint).copy_(moved)
    state = checkpoint.committed()
    from shoal.node.run.facts import first_base
    from shoal.node.training.checkpoint.about import About
    from shoal.node.training.checkpoint.write import write_checkpoint

    about = About.of(whole, whole.digest, first_base(whole, state.current.root), (), samples=0, peer=ME, inner_steps=0)
    about = about.model_copy(update={"root": state.current.root.hex()})
    export(write_checkpoint(tmp_path / "moved", about, state.current, None), tmp_path / "out")
    opened = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.inference_mode(), quietly():
        plain = opened(TOKENS).logits.clone()
        theirs = peft.PeftModel.from_pretrained(opened, tmp_path / "out")(TOKENS).logits
        ours = registry.build(whole, (base,))
        checkpoint.shape.layout.load(moved, ours)
        assert torch.equal(ours(TOKENS), theirs)
        assert isinstance(ours, HfModel)
        ours.network.save_pretrained(tmp_path / "theirs")
    assert not torch.equal(plain, theirs)
    one, other = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("out", "theirs"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    settings = [json.loads((tmp_path / folder / "adapter_config.json").read_text()) for folder in ("out", "theirs")]
    assert settings[0] | {"base_model_name_or_path": str(base)} == settings[1] | {"base_model_name_or_path": str(base)}


UNTIED = {**TABLE, "tie_word_embeddings": False}
MIXTRAL = {**UNTIED, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("table", "targets"),
    [
        (TABLE, ("embed_tokens", "q_proj")),
        (TABLE, ("lm_head",)),
        (UNTIED, ("lm_head", "q_proj")),
        (GPT2, ("wte", "c_attn")),
        (MIXTRAL, ("w1", "w2", "w3", "gate")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value["model_type"]),
)
def test_exported_adapters_are_what_peft_itself_writes(
    tmp_path: Path, table: dict[str, Any], targets: tuple[str, ...]
) -> None:
    """Names and settings, but for the base's own weights, which peft adds where adapters are on embeddings."""
    peft = needs("peft")
    lora = LORA.model_copy(update={"targets": targets})
    whole, checkpoint = founded(tmp_path, manifest(table, lora=lora))
    export(checkpoint.path, tmp_path / "out")
    ours = registry.build(whole)
    assert isinstance(ours, HfModel)
    checkpoint.shape.layout.load(weights_of(checkpoint), ours)
    with quietly():
        ours.network.save_pretrained(tmp_path / "theirs")
    one, other = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("out", "theirs"))
    assert one.keys() == {name for name in other if not name.endswith(".base_layer.weight")}
    assert all(torch.equal(one[name], other[name]) for name in one)
    settings = [json.loads((tmp_path / folder / "adapter_config.json").read_text()) for folder in ("out", "theirs")]
    assert settings[0] == settings[1]
    base = hf.network_of(whole.model, whole.seed)  # type: ignore[arg-type]
    with torch.inference_mode(), quietly():
        theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out")
        assert torch.equal(ours.eval()(TOKENS), theirs.eval()(TOKENS).logits)


def test_the_buffers_of_a_base_are_part_of_it(tmp_path: Path) -> None:
    needs("peft")
    table = {
        **{key: value for key, value in TABLE.items() if key != "tie_word_embeddings"},
        **{"model_type": "glm4_moe", "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
        **{"first_k_dense_replace": 1, "head_dim": 8, "n_group": 1, "topk_group": 1},
    }
    config = transformers.AutoConfig.for_model(**table)
    with torch.random.fork_rng(devices=()):
        network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network.save_pretrained(tmp_path / "base")
    (bias,) = (each for name, each in network.named_buffers() if name.endswith("e_score_correction_bias"))
    bias += 1
    network.save_pretrained(tmp_path / "other")
    run = manifest(table, lora=LORA.model_copy(update={"base": "weights"}))
    whole, _ = founded(tmp_path, run, (tmp_path / "base",))
    registry.build(whole, (tmp_path / "base",))
    with pytest.raises(LocalError, match="holds other weights"):
        registry.build(whole, (tmp_path / "other",))


def test_another_base_is_refused(tmp_path: Path, base: Path) -> None:
    whole, _ = founded(tmp_path, manifest(lora=LORA.model_copy(update={"base": "weights"})), (base,))
    other = base_folder(tmp_path / "other", seed=6)
    with pytest.raises(LocalError, match="holds other weights"):
        registry.build(whole, (other,))
    with pytest.raises(LocalError, match="--weights"):
        registry.build(whole)
    assert Layout.of(registry.build(whole, (other, base))).size == registry.layout_of(whole.model).size


def test_a_base_of_the_seed_must_come_to_the_same_bits(tmp_path: Path) -> None:
    needs("peft")
    whole, _ = founded(tmp_path, manifest(lora=LORA))
    registry.build(whole)
    assert isinstance(whole.model, HfSpec)
    elsewhere = whole.model.model_copy(update={"base": "ab" * 32})
    with pytest.raises(LocalError, match="makes other weights of the run's seed"):
        registry.build(whole.model_copy(update={"model": elsewhere}))


def test_targets_that_there_are_not_are_named(tmp_path: Path) -> None:
    needs("peft")
    with pytest.raises(LocalError, match="no adapters for the targets nowhere"):
        founded(tmp_path, manifest(lora=LoraSpec(targets=("nowhere",), base="seed")))
