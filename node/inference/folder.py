"""Opens a model's folder in the format of transformers: config.json, safetensors, and mostly a tokenizer.

A folder that `shoal ckpt export` wrote of Shoal's own decoder is opened without the library. Of any other folder only
configs and numbers are used: code that it holds or names is never run, and the hub is not asked.

A folder's settings are spread over several files, which may contradict each other:

    config.json               which model it is; which token ends a text; how many tokens the model sees
    generation_config.json    which tokens, and which strings, end a text
    tokenizer_config.json     the special tokens by name; how many tokens the model sees; the chat template
    special_tokens_map.json   the special tokens again
    chat_template.jinja       the chat template again
    chat_template.json        the chat template in older folders of multimodal models

A text ends at any end token that any file names. The context is the smallest that any file allows. A chat template in
its own file is preferred, as in transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from shoal.node.base.room import check_memory
from shoal.node.base.textfile import parse_table, read_text, shown
from shoal.node.inference.chat import ChatFormat, PlainChat, Template, TemplateChat
from shoal.node.inference.library import library_scorer
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.scorer import Scorer
from shoal.node.inference.served import BYTE_TOKENS, Served, ServeOptions
from shoal.node.manifest.model import ModelSpec, with_floats
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.tokenizer import CONFIG, ENDS, GENERATION, TOKENIZER_CONFIG, tokenizer_of_bytes
from shoal.node.training.data.hub import TOKENIZER_FILE
from shoal.node.training.data.vocabulary import (
    BYTES,
    MAX_FILE,
    ByteVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    read_tokenizer,
)
from shoal.node.training.models.decoder import skeleton
from shoal.node.training.models.hf import config_of, most_tokens, opened
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.llama import config
from shoal.node.training.trainer.device import choose_device
from shoal.protocol.base.errors import LocalError

SPECIAL_TOKENS, TEMPLATE = "special_tokens_map.json", "chat_template.jinja"
OLDER_TEMPLATE = "chat_template.json"
MORE_TEMPLATES = "additional_chat_templates"  # a folder of named templates
MAX_TABLE = MAX_FILE  # bytes
NO_LIMIT = 1 << 30  # tokens: tokenizers without a limit state a far greater number
DEFAULT_CONTEXT = 2048  # tokens, if no file says how many the model sees
ENDING = ("eos", "eot", "eom", "end_of_turn")  # how the names of tokens begin that end a text or a turn
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")  # special tokens that a template may use

log = logging.getLogger("shoal.serve")


class Settings:
    """The settings files of one folder; LocalError if one cannot be read, or is not a JSON object."""

    def __init__(self, folder: Path) -> None:
        try:
            self.config: dict[str, Any] = with_floats(read_table(folder / CONFIG))
        except RecursionError as error:
            raise LocalError(f"{shown(folder / CONFIG)} is nested too deeply", code="model-unusable") from error
        self.generation = _optional(folder / GENERATION)
        self.tokenizer = _optional(folder / TOKENIZER_CONFIG)
        self._special = _optional(folder / SPECIAL_TOKENS)
        self._folder, self._template_file = folder, folder / TEMPLATE

    def context(self, network: Any) -> int:
        """The model's context length in tokens: the smallest that a file allows. `network` is the library's model."""
        limits: list[Any] = [most_tokens(network), self.tokenizer.get("model_max_length")]
        return int(min((each for each in limits if _is_length(each)), default=DEFAULT_CONTEXT))

    @property
    def named(self) -> dict[str, str]:
        """The special tokens that a template may use, by name."""
        return {key: text for table in self._tokens for key, text in table.items() if key in NAMED}

    @cached_property
    def template(self) -> Template | None:
        """The chat template; None if there is none. LocalError if it is not a template."""
        if self._template_file.exists():
            return _template(read_text(self._template_file, limit=MAX_FILE), shown(self._template_file))
        where, found = shown(self._folder / TOKENIZER_CONFIG), self.tokenizer.get("chat_template")
        if found is None and (older := self._folder / OLDER_TEMPLATE).exists():
            where, found = shown(older), read_table(older).get("chat_template")
        if isinstance(found, list):  # several templates by name
            found = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
        if found is None and (named := [each.stem for each in self._folder.glob(f"{MORE_TEMPLATES}/*.jinja")]):
            self._warn_unused(shown(self._folder / MORE_TEMPLATES), named)
        if not isinstance(found, dict):
            return None if found is None else _template(found, where)
        if "default" in found:
            return _template(found["default"], where)
        if not found:
            raise LocalError(f"{where}: chat_template names no template", code="template-wrong")
        self._warn_unused(where, found)
        return None

    def _warn_unused(self, where: str, names: Iterable[str]) -> None:
        what = "%s has templates for conversations named %s, and none named default: the plain format is taken. "
        log.warning(
            what + "Write one of them to %s",
            where,
            ", ".join(sorted(names)),
            shown(self._template_file),
            extra={"code": "chat-template-unused"},
        )

    @property
    def begins(self) -> frozenset[int]:
        """The ids of tokens that begin a text."""
        found = (table.get("bos_token_id") for table in (self.generation, *self._configs))
        return frozenset(each for each in found if isinstance(each, int))

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        found = self.generation.get("stop_strings")
        several = found if isinstance(found, list) else [found]
        return tuple(each for each in several if isinstance(each, str) and each)

    def ends(self, vocabulary: TokenizerVocabulary) -> frozenset[int]:
        """The ids of tokens that end a text: all that any file names, by id or by text."""
        numbers = {number for table in (self.generation, *self._configs) for number in _numbers(table)}
        texts = {text for table in self._tokens for key, text in table.items() if key.startswith(ENDING)}
        both = numbers | {vocabulary.tokens.token_to_id(text) for text in texts}
        return frozenset(each for each in both if each is not None)

    @property
    def _tokens(self) -> tuple[dict[str, str], ...]:
        """Special tokens by name (`eos_token`, or a name of the tokenizer's author), one table for each file."""
        more = (self.tokenizer.get(key) for key in ("extra_special_tokens", "model_specific_special_tokens"))
        tables = (self._special, *(each for each in more if isinstance(each, dict)), self.tokenizer)
        return tuple(_texts(table) for table in tables)

    @property
    def _configs(self) -> tuple[Mapping[str, Any], ...]:
        """The config, and the config of the text model in it, if the model is multimodal."""
        parts = (self.config.get(key) for key in ("text_config", "decoder"))
        return (self.config, *(each for each in parts if isinstance(each, dict)))


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object of a settings file; LocalError if it is not one."""
    return parse_table(read_text(path, limit=MAX_TABLE), shown(path))


def _template(found: Any, where: str) -> Template:
    """The template; LocalError if it is not a text, or empty."""
    if not isinstance(found, str):
        raise LocalError(f"{where}: chat_template is no text in Jinja", code="template-wrong")
    if not found.strip():
        raise LocalError(
            f"{where} holds no template for conversations: bring it back, or remove it: without one the format is "
            "plain",
            code="template-wrong",
        )
    return Template(found, where)


def _optional(path: Path) -> dict[str, Any]:
    return read_table(path) if path.exists() else {}


def _texts(table: Mapping[str, Any]) -> dict[str, str]:
    """The tokens of a table by name; an entry is a text, or a table with `content`."""
    texts = {key: each.get("content") if isinstance(each, dict) else each for key, each in table.items()}
    return {key: each for key, each in texts.items() if key.endswith("_token") and isinstance(each, str) and each}


def _numbers(table: Mapping[str, Any]) -> Iterator[int]:
    """The ids that a table names as end tokens."""
    found = table.get("eos_token_id")
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, int) and not isinstance(each, bool) and each >= 0:
            yield each


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < NO_LIMIT


def open_folder(path: Path, options: ServeOptions) -> Served:
    """The model in a folder; LocalError if it is damaged, has no language head, or its tokenizer does not fit."""
    settings = Settings(path)
    saved = max((int(each.stat().st_mtime) for each in path.glob("*.safetensors")), default=0)
    version = f"{saved:x}"
    check_memory(sum(each.stat().st_size for each in path.glob("*.safetensors")), f"opening the model in {path}")
    spec = own_decoder(settings.config)
    scorer = _decoder(path, spec, options, version) if spec else _library(path, settings, options, version)
    vocabulary = _vocabulary(path, settings, scorer.vocab, options.tokenizer)
    return Served(
        name=path.resolve().name,
        scorer=scorer,
        vocabulary=vocabulary,
        chat=_chat(settings, vocabulary),
        created=saved,
        sentence=f"{settings.config.get('model_type')} model in {path}",
        stops=settings.stops,
    )


def own_decoder(table: Mapping[str, Any]) -> ModelSpec | None:
    """The spec of Shoal's own decoder (training/models/decoder.py), if a config.json describes one; otherwise None."""
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
    ends = {key: table.get(key) for key in ENDS}  # these entries come from the tokenizer
    return spec if dict(table) == config(spec) | ends else None


def _decoder(path: Path, spec: ModelSpec, options: ServeOptions, version: str) -> Scorer:
    model = skeleton(spec).to_empty(device="cpu")
    layout = Layout.of(model)
    try:
        layout.load(layout.pack(load_file(path / MODEL)), model)
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path / MODEL} cannot be read: {error}", code="unreadable") from error
    except LocalError as error:
        raise LocalError(f"{path / MODEL} does not fit {path / CONFIG}: {error}", code="model-unusable") from error
    model = model.to(choose_device(options.device))
    return LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=options.slots, version=version)


def _library(path: Path, settings: Settings, options: ServeOptions, version: str) -> Scorer:
    try:
        found = config_of(settings.config)
    except LocalError as error:
        raise LocalError(f"{path / CONFIG}: {error}", code="model-unusable") from error
    network = opened(path, found)
    network.eval().requires_grad_(False).to(choose_device(options.device))
    return library_scorer(network, limit=settings.context(network), slots=options.slots, version=version)


def _vocabulary(path: Path, settings: Settings, vocab: int, chosen: str) -> Vocabulary:
    file = Path(chosen) if chosen and chosen != BYTE_TOKENS else path / TOKENIZER_FILE
    if chosen == BYTE_TOKENS or (not file.exists() and vocab <= BYTES) or _is_of_bytes(file):
        return ByteVocabulary()
    if not file.exists():
        raise LocalError(
            f"{file} does not exist, and the model has {vocab:,} tokens: name a tokenizer.json with --tokenizer, or "
            f"say --tokenizer {BYTE_TOKENS}",
            code="tokenizer-missing",
        )
    vocabulary = TokenizerVocabulary(read_tokenizer(file), frozenset(), special=True, what=str(file))
    if vocabulary.size > vocab:
        raise LocalError(f"{file} has {vocabulary.size:,} tokens, and the model {vocab:,}", code="other-tokenizer")
    vocabulary.ends = settings.ends(vocabulary)
    return vocabulary


def _is_of_bytes(file: Path) -> bool:
    """Whether it is the tokenizer that Shoal exports for runs on bytes, which needs no library."""
    return file.exists() and read_table(file) == tokenizer_of_bytes()


def _chat(settings: Settings, vocabulary: Vocabulary) -> ChatFormat:
    """The folder's chat template, or the plain format. A template's end-of-turn token is added to the end tokens."""
    if settings.template is None:
        return PlainChat()
    if not isinstance(vocabulary, TokenizerVocabulary):
        log.warning(
            "the chat_template in %s is not used, as the model's tokens are bytes",
            settings.template.where,
            extra={"code": "chat-template-unused"},
        )
        return PlainChat()
    chat = TemplateChat(vocabulary.tokens, settings.template, settings.named, settings.begins)
    if chat.end_of_turn is not None:
        vocabulary.ends |= {chat.end_of_turn}
    return chat
