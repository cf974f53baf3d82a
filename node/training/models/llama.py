"""The kind of model `llama`: Shoal's own decoder (decoder.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.node.manifest.base import MODEL_FILE
from shoal.node.manifest.model import ModelSpec
from shoal.node.manifest.requirements import parameters
from shoal.node.manifest.tensors import Shapes
from shoal.node.training.models.decoder import INIT_STD, NORM_EPSILON, Llama, build, skeleton
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.tensor_file import write_tensors

END_OF_TEXT = 0  # corpus.py ends each text with this byte


class LlamaKind:
    """Needs only torch, and no download: the seed gives the first weights, to the bit."""

    def shapes(self, spec: ModelSpec) -> Shapes:
        """See Kind."""
        return {place.name: place.shape for place in Layout.of(skeleton(spec))}

    def build(self, spec: ModelSpec, seed: int, weights: Sequence[Path] = ()) -> Llama:
        """See Kind."""
        return build(spec, seed)

    def flops_per_token(self, spec: ModelSpec) -> int:
        """6 N + 12 L D T, for N weights in matrix products, L layers of dimension D and T tokens of context.

        A weight is multiplied and added once in the forward and twice in the backward pass. Attention has two products
        of T x D in each layer, counted as if each token saw the whole context, as is usual. An embedding that is not
        also the head is looked up, not multiplied.
        """
        weights = parameters(spec) - (0 if spec.tied else spec.vocab * spec.dim)
        return 6 * weights + 12 * spec.layers * spec.dim * spec.context

    def write(self, spec: ModelSpec, parameters: Tensor, folder: Path) -> None:
        """See Kind. Tensors have transformers' names; transformers itself is not needed."""
        write_tensors(folder / MODEL_FILE, Layout.of(skeleton(spec)).views(parameters))
        _write(folder / "config.json", config(spec))
        _write(folder / "generation_config.json", {"eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT})


def config(spec: ModelSpec) -> dict[str, Any]:
    """The settings of a LlamaConfig for this model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab,
        "hidden_size": spec.dim,
        "intermediate_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.dim // spec.heads,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": spec.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": spec.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": INIT_STD,
        "bos_token_id": None,
        "eos_token_id": END_OF_TEXT,
        "pad_token_id": END_OF_TEXT,
        "torch_dtype": "float32",
    }


def _write(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
