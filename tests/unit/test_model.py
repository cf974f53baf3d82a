"""The decoder: Hugging Face's names, its numerics written a second time, causality, reproducible initialisation."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import NORM_EPSILON, Llama, build

SPEC = ModelSpec(vocab=31, dim=24, layers=2, heads=6, kv_heads=2, hidden=40, context=16)
LAYER = (
    "input_layernorm",
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "post_attention_layernorm",
    "self_attn.k_proj",
    "self_attn.o_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, SPEC.vocab, shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("tied", [True, False])
def test_names_are_those_of_llama_for_causal_lm(tied: bool) -> None:
    model = build(SPEC.model_copy(update={"tied": tied}), seed=1)
    expected = {f"model.layers.{i}.{part}.weight" for i in range(2) for part in LAYER}
    expected |= {"model.embed_tokens.weight", "model.norm.weight"} | (set() if tied else {"lm_head.weight"})
    assert set(model.state_dict()) == expected
    assert {name for name, _ in model.named_parameters()} == expected


@pytest.mark.parametrize("tied", [True, False])
def test_forward_equals_the_definition_written_out(tied: bool) -> None:
    spec = SPEC.model_copy(update={"tied": tied})
    model = build(spec, seed=2).double()
    batch = tokens(3, 11)
    assert torch.allclose(model(batch), reference(model, spec, batch), rtol=1e-6, atol=1e-7)


def reference(model: Llama, spec: ModelSpec, batch: Tensor) -> Tensor:
    """Llama one position and one head at a time: slow, and shares no line with the model."""
    w = model.state_dict()
    size = spec.dim // spec.heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON).sqrt() * w[name]

    def turn(x: Tensor, position: int) -> Tensor:
        """Coordinates i and i + size / 2 as a complex number, times e^(i angle)."""
        angles = torch.tensor([position * spec.rope_theta ** (-2 * i / size) for i in range(size // 2)])
        z = torch.complex(x[: size // 2], x[size // 2 :]) * torch.polar(torch.ones(size // 2), angles)
        return torch.cat((z.real, z.imag))

    rows = []
    for row in batch:
        x = w["model.embed_tokens.weight"][row]
        for i in range(spec.layers):
            at = f"model.layers.{i}."
            h = norm(x, at + "input_layernorm.weight")
            q, k, v = (h @ w[f"{at}self_attn.{p}_proj.weight"].T for p in "qkv")
            mixed = torch.zeros_like(q)
            for head in range(spec.heads):
                mine = slice(head * size, (head + 1) * size)
                group = head // (spec.heads // spec.kv_heads)
                theirs = slice(group * size, (group + 1) * size)
                for t in range(len(row)):
                    query = turn(q[t, mine], t)
                    scores = torch.stack([query @ turn(k[s, theirs], s) for s in range(t + 1)]) / size**0.5
                    mixed[t, mine] = scores.softmax(0) @ v[: t + 1, theirs]
            x = x + mixed @ w[at + "self_attn.o_proj.weight"].T
            h = norm(x, at + "post_attention_layernorm.weight")
            gate, up = h @ w[at + "mlp.gate_proj.weight"].T, h @ w[at + "mlp.up_proj.weight"].T
            x = x + (gate * gate.sigmoid() * up) @ w[at + "mlp.down_proj.weight"].T
        rows.append(norm(x, "model.norm.weight"))
    head_weight = w["model.embed_tokens.weight"] if spec.tied else w["lm_head.weight"]
    return torch.stack(rows) @ head_weight.T


def test_no_token_sees_the_future() -> None:
    model = build(SPEC, seed=3)
    batch = tokens(2, 12)
    changed = batch.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % SPEC.vocab
    with torch.no_grad():
        before, after = model(batch), model(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_loss_is_the_mean_cross_entropy_of_all_but_the_first_token() -> None:
    model = build(SPEC, seed=4)
    batch = tokens(2, 6)
    with torch.no_grad():
        logp = model(batch).log_softmax(-1)
        each = [-logp[b, t, batch[b, t + 1]] for b in range(2) for t in range(5)]
        assert torch.allclose(model.loss(batch), torch.stack(each).mean(), atol=1e-6)


def test_initialisation_is_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = build(SPEC, seed=7)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    torch.manual_seed(12)
    again, other = build(SPEC, seed=7), build(SPEC, seed=8)
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


def test_initialisation_has_these_very_bits() -> None:
    """Members build the first state themselves, so a change here splits old and new peers."""
    assert fingerprint(build(SPEC, seed=0)) == GOLDEN_INIT


def test_initial_loss_is_that_of_a_uniform_guess() -> None:
    spec = ModelSpec()
    with torch.no_grad():
        loss = build(spec, seed=0).loss(torch.randint(0, 256, (4, 65))).item()
    assert loss == pytest.approx(5.545, abs=0.1)  # ln 256


def fingerprint(model: Llama) -> str:
    parts = [weight.detach().numpy().tobytes() for weight in model.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


GOLDEN_INIT = "d6aeb0c7576cb5d0"


def test_shapes_are_known_without_torchs_compiler() -> None:
    """Importing it takes longer than all else that a command does, and a daemon would keep it in memory."""
    code = (
        "import sys; from shoal.node.manifest.model import ModelSpec;"
        "from shoal.node.training.models.registry import layout_of;"
        "layout_of(ModelSpec()); print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout == "[]\n"
