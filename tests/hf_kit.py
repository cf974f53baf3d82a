"""Helps to test with Hugging Face's libraries: a tiny config, weights for it, and a skip where they are missing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

TABLE = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
CONFIG = "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in TABLE.items()) + " }"  # as TOML


def needs(package: str) -> Any:
    """The package; without it the tests are skipped, and say what to install."""
    return pytest.importorskip(package, reason=f"{package} IS NOT INSTALLED: see `make install`")


def skip_without(*packages: str) -> pytest.MarkDecorator:
    """Skips tests as `needs` does, without importing the packages while tests are collected."""
    absent = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{absent} ARE NOT INSTALLED: see `make install`")


def base_folder(folder: Path, seed: int = 5) -> Path:
    """Weights of the tiny config as transformers saves them."""
    transformers = needs("transformers")
    table = dict(TABLE)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(table.pop("model_type"), **table)
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
