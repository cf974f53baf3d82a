"""A checkpoint as a folder that Hugging Face's transformers opens: the tensors, and two files of settings.

The model is Llama's architecture with its tensor names, so the tensors are copied as they are. There is no tokenizer
to write: a run over bytes has none, and its token 0, which ends a text, is all that generating needs to know.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from shoal.node.checkpoint.about import MODEL
from shoal.node.checkpoint.read import load
from shoal.node.disk import force
from shoal.node.manifest import ModelSpec
from shoal.node.model import INIT_STD, NORM_EPSILON
from shoal.protocol.errors import LocalError

END_OF_TEXT = 0  # corpus.py ends each text with this byte


def export(checkpoint: Path, out: Path) -> None:
    """Verify a checkpoint and write its model to `out`, which must not exist; LocalError, and nothing is left there."""
    spec = load(checkpoint).manifest.model
    if out.exists():
        raise LocalError(f"{out} exists: name a new folder")
    fresh = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        fresh.mkdir(parents=True)
        shutil.copyfile(checkpoint / MODEL, fresh / MODEL)
        _write(fresh / "config.json", config(spec))
        _write(fresh / "generation_config.json", {"eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT})
        for path in (*fresh.iterdir(), fresh):
            force(path)
        fresh.rename(out)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise LocalError(f"cannot write {out}: {error.strerror or error}") from error


def config(spec: ModelSpec) -> dict[str, Any]:
    """The model as a LlamaConfig."""
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
