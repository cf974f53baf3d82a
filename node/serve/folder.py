"""A folder that transformers opens: config.json, safetensors, perhaps a tokenizer with a template for conversations.

What `shoal ckpt export` writes of our own decoder is opened as that, without the library. Of any other only configs and
numbers are taken: no code that a folder holds or names is ever run, and nothing is asked of the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from shoal.node.checkpoint.about import MODEL
from shoal.node.checkpoint.tokenizer import CONFIG, ENDS, tokenizer_of_bytes
from shoal.node.dataset.tokens import TOKENIZER_FILE
from shoal.node.models.hf import config_of, opened
from shoal.node.models.llama import config
from shoal.node.room import check_memory
from shoal.node.serve.chat import ChatFormat, PlainChat, TemplateChat
from shoal.node.serve.library import library_scorer
from shoal.node.serve.local import LlamaScorer
from shoal.node.serve.scorer import Scorer
from shoal.node.serve.served import BYTE_TOKENS, Choices, Served
from shoal.node.serve.settings import Settings, read_table
from shoal.node.serve.text import BYTES, Bytes, Codec, Tokenized, read_tokenizer
from shoal.node.spec.model import ModelSpec
from shoal.node.state.layout import Layout
from shoal.node.trainer.device import choose_device
from shoal.node.trainer.model import skeleton
from shoal.protocol.errors import LocalError

log = logging.getLogger("shoal.serve")


def open_folder(path: Path, choices: Choices) -> Served:
    """The model in it; LocalError if it is damaged, has no language head, or names tokens that are not there."""
    settings = Settings(path)
    saved = max((int(each.stat().st_mtime) for each in path.glob("*.safetensors")), default=0)
    version = f"{saved:x}"
    check_memory(sum(each.stat().st_size for each in path.glob("*.safetensors")), f"opening the model in {path}")
    spec = own(settings.config)
    scorer = _decoder(path, spec, choices, version) if spec else _library(path, settings, choices, version)
    codec = _codec(path, settings, scorer.vocab, choices.tokenizer)
    return Served(
        name=path.resolve().name,
        scorer=scorer,
        codec=codec,
        chat=_chat(settings, codec),
        created=saved,
        sentence=f"{settings.config.get('model_type')} model in {path}",
        stops=settings.stops,
    )


def own(table: Mapping[str, Any]) -> ModelSpec | None:
    """The decoder of node/trainer/model.py that a config.json describes; None if it describes anything else."""
    try:
        spec = ModelSpec(
            vocab=table["vocab_size"],
            dim=table["hidden_size"],
            layers=table["num_hidden_layers"],
            heads=table["num_attention_heads"],
            kv_heads=table["num_key_value_heads"],
            hidden=table["intermediate_size"],
            context=table["max_position_embeddings"],
            rope_theta=table["rope_theta"],
            tied=table["tie_word_embeddings"],
        )
    except (KeyError, ValidationError):
        return None
    ends = {key: table.get(key) for key in ENDS}  # are the tokenizer's
    return spec if dict(table) == config(spec) | ends else None


def _decoder(path: Path, spec: ModelSpec, choices: Choices, version: str) -> Scorer:
    model = skeleton(spec).to_empty(device="cpu")
    layout = Layout.of(model)
    try:
        layout.load(layout.pack(load_file(path / MODEL)), model)
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path / MODEL} cannot be read: {error}") from error
    except LocalError as error:
        raise LocalError(f"{path / MODEL} does not fit {path / CONFIG}: {error}") from error
    model = model.to(choose_device(choices.device))
    return LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=choices.slots, version=version)


def _library(path: Path, settings: Settings, choices: Choices, version: str) -> Scorer:
    try:
        found = config_of(settings.config)
    except LocalError as error:
        raise LocalError(f"{path / CONFIG}: {error}") from error
    network = opened(path, found)
    network.eval().requires_grad_(False).to(choose_device(choices.device))
    return library_scorer(network, limit=settings.longest(network), slots=choices.slots, version=version)


def _codec(path: Path, settings: Settings, vocab: int, chosen: str) -> Codec:
    file = Path(chosen) if chosen and chosen != BYTE_TOKENS else path / TOKENIZER_FILE
    if chosen == BYTE_TOKENS or (not file.exists() and vocab <= BYTES) or _is_of_bytes(file):
        return Bytes()
    if not file.exists():
        raise LocalError(
            f"{file} does not exist, and the model has {vocab:,} tokens: name a tokenizer.json with --tokenizer, or "
            f"say --tokenizer {BYTE_TOKENS}"
        )
    codec = Tokenized(read_tokenizer(file), frozenset(), special=True, what=str(file))
    if codec.size > vocab:
        raise LocalError(f"{file} has {codec.size:,} tokens, and the model {vocab:,}")
    codec.ends = settings.ends(codec)
    return codec


def _is_of_bytes(file: Path) -> bool:
    """Whether it is what we export where a byte is a token: we need no library for that."""
    return file.exists() and read_table(file) == tokenizer_of_bytes()


def _chat(settings: Settings, codec: Codec) -> ChatFormat:
    """The folder's template, whose end of a turn ends a text from now on; the plain format where there is none."""
    if settings.template is None:
        return PlainChat()
    if not isinstance(codec, Tokenized):
        log.warning("the chat_template in %s is not used, as the model's tokens are bytes", settings.template.where)
        return PlainChat()
    chat = TemplateChat(codec.tokens, settings.template, settings.named, settings.begins)
    if chat.end_of_turn is not None:
        codec.ends |= {chat.end_of_turn}
    return chat
