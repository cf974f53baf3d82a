"""A folder that transformers opens: config.json, safetensors, perhaps a tokenizer with a template for conversations.

What `shoal ckpt export` writes of our own decoder is opened as that, without the library. Of any other only configs and
numbers are taken: no code that a folder holds or names is ever run, and nothing is asked of the hub.

Several of a folder's files of settings say one thing, and not always the same:

    config.json               which model it is; which token ends a text; how many tokens the model sees
    generation_config.json    which tokens, and which strings, end a text
    tokenizer_config.json     the special tokens by name; how many tokens the model sees; the template of a conversation
    special_tokens_map.json   the special tokens again
    chat_template.jinja       the template again
    chat_template.json        the same, as older folders of models that also see or hear have it

A text ends at any token that any of them names. The model is given no more tokens than each of them allows. Of
templates the file of its own is taken first, as transformers does.
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
from shoal.node.inference.served import BYTE_TOKENS, Choices, Served
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
MORE_TEMPLATES = "additional_chat_templates"  # a folder of others, by name
MAX_TABLE = MAX_FILE  # bytes
WITHOUT_END = 1 << 30  # tokens: tokenizers whose author set no limit say far more than this
USUAL = 2048  # tokens, where nothing says how many a model sees
ENDING = ("eos", "eot", "eom", "end_of_turn")  # in the names of tokens that end a text, or what is said in one turn
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")  # that a template may name

log = logging.getLogger("shoal.serve")


class Settings:
    """The settings of one folder; LocalError if one of its files cannot be read, or is no table."""

    def __init__(self, folder: Path) -> None:
        try:
            self.config: dict[str, Any] = with_floats(read_table(folder / CONFIG))
        except RecursionError as error:
            raise LocalError(f"{shown(folder / CONFIG)} is nested too deeply") from error
        self.generation = _optional(folder / GENERATION)
        self.tokenizer = _optional(folder / TOKENIZER_CONFIG)
        self._special = _optional(folder / SPECIAL_TOKENS)
        self._folder, self._template_file = folder, folder / TEMPLATE

    def longest(self, network: Any) -> int:
        """How many tokens the model may be given at once: what the strictest says. `network` is the library's."""
        said: list[Any] = [most_tokens(network), self.tokenizer.get("model_max_length")]
        return int(min((each for each in said if _is_length(each)), default=USUAL))

    @property
    def named(self) -> dict[str, str]:
        """The special tokens that a template may name."""
        return {key: text for table in self._tokens for key, text in table.items() if key in NAMED}

    @cached_property
    def template(self) -> Template | None:
        """Of a conversation; None: the model has none. LocalError if there is something else in its place."""
        if self._template_file.exists():
            return _template(read_text(self._template_file, limit=MAX_FILE), shown(self._template_file))
        where, found = shown(self._folder / TOKENIZER_CONFIG), self.tokenizer.get("chat_template")
        if found is None and (older := self._folder / OLDER_TEMPLATE).exists():
            where, found = shown(older), read_table(older).get("chat_template")
        if isinstance(found, list):  # several, by name
            found = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
        if found is None and (named := [each.stem for each in self._folder.glob(f"{MORE_TEMPLATES}/*.jinja")]):
            self._say_unused(shown(self._folder / MORE_TEMPLATES), named)
        if not isinstance(found, dict):
            return None if found is None else _template(found, where)
        if "default" in found:
            return _template(found["default"], where)
        if not found:
            raise LocalError(f"{where}: chat_template names no template")
        self._say_unused(where, found)
        return None

    def _say_unused(self, where: str, names: Iterable[str]) -> None:
        what = "%s has templates for conversations named %s, and none named default: the plain format is taken. "
        log.warning(what + "Write one of them to %s", where, ", ".join(sorted(names)), shown(self._template_file))

    @property
    def begins(self) -> frozenset[int]:
        """The tokens that begin a text, by number."""
        found = (table.get("bos_token_id") for table in (self.generation, *self._configs))
        return frozenset(each for each in found if isinstance(each, int))

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        found = self.generation.get("stop_strings")
        several = found if isinstance(found, list) else [found]
        return tuple(each for each in several if isinstance(each, str) and each)

    def ends(self, vocabulary: TokenizerVocabulary) -> frozenset[int]:
        """The tokens that end a text: all that anything names, by number or by text."""
        numbers = {number for table in (self.generation, *self._configs) for number in _numbers(table)}
        texts = {text for table in self._tokens for key, text in table.items() if key.startswith(ENDING)}
        both = numbers | {vocabulary.tokens.token_to_id(text) for text in texts}
        return frozenset(each for each in both if each is not None)

    @property
    def _tokens(self) -> tuple[dict[str, str], ...]:
        """Special tokens by the names that a tokenizer has for them (`eos_token`, or its author's), by table."""
        more = (self.tokenizer.get(key) for key in ("extra_special_tokens", "model_specific_special_tokens"))
        tables = (self._special, *(each for each in more if isinstance(each, dict)), self.tokenizer)
        return tuple(_texts(table) for table in tables)

    @property
    def _configs(self) -> tuple[Mapping[str, Any], ...]:
        """The config, and that of its model of text, if this is one part of several."""
        parts = (self.config.get(key) for key in ("text_config", "decoder"))
        return (self.config, *(each for each in parts if isinstance(each, dict)))


def read_table(path: Path) -> dict[str, Any]:
    """A file of settings; LocalError if it is none."""
    return parse_table(read_text(path, limit=MAX_TABLE), shown(path))


def _template(found: Any, where: str) -> Template:
    """A template's text; LocalError if it is none."""
    if not isinstance(found, str):
        raise LocalError(f"{where}: chat_template is no text in Jinja")
    if not found.strip():
        raise LocalError(
            f"{where} holds no template for conversations: bring it back, or remove it: without one the format is plain"
        )
    return Template(found, where)


def _optional(path: Path) -> dict[str, Any]:
    return read_table(path) if path.exists() else {}


def _texts(table: Mapping[str, Any]) -> dict[str, str]:
    """Tokens of a table by name; each is a text, or a table with one."""
    texts = {key: each.get("content") if isinstance(each, dict) else each for key, each in table.items()}
    return {key: each for key, each in texts.items() if key.endswith("_token") and isinstance(each, str) and each}


def _numbers(table: Mapping[str, Any]) -> Iterator[int]:
    """The tokens that a table names as ends."""
    found = table.get("eos_token_id")
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, int) and not isinstance(each, bool) and each >= 0:
            yield each


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < WITHOUT_END


def open_folder(path: Path, choices: Choices) -> Served:
    """The model in it; LocalError if it is damaged, has no language head, or names tokens that are not there."""
    settings = Settings(path)
    saved = max((int(each.stat().st_mtime) for each in path.glob("*.safetensors")), default=0)
    version = f"{saved:x}"
    check_memory(sum(each.stat().st_size for each in path.glob("*.safetensors")), f"opening the model in {path}")
    spec = own(settings.config)
    scorer = _decoder(path, spec, choices, version) if spec else _library(path, settings, choices, version)
    vocabulary = _vocabulary(path, settings, scorer.vocab, choices.tokenizer)
    return Served(
        name=path.resolve().name,
        scorer=scorer,
        vocabulary=vocabulary,
        chat=_chat(settings, vocabulary),
        created=saved,
        sentence=f"{settings.config.get('model_type')} model in {path}",
        stops=settings.stops,
    )


def own(table: Mapping[str, Any]) -> ModelSpec | None:
    """The decoder (training/models/decoder.py) that a config.json describes; None if it describes anything else."""
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


def _vocabulary(path: Path, settings: Settings, vocab: int, chosen: str) -> Vocabulary:
    file = Path(chosen) if chosen and chosen != BYTE_TOKENS else path / TOKENIZER_FILE
    if chosen == BYTE_TOKENS or (not file.exists() and vocab <= BYTES) or _is_of_bytes(file):
        return ByteVocabulary()
    if not file.exists():
        raise LocalError(
            f"{file} does not exist, and the model has {vocab:,} tokens: name a tokenizer.json with --tokenizer, or "
            f"say --tokenizer {BYTE_TOKENS}"
        )
    vocabulary = TokenizerVocabulary(read_tokenizer(file), frozenset(), special=True, what=str(file))
    if vocabulary.size > vocab:
        raise LocalError(f"{file} has {vocabulary.size:,} tokens, and the model {vocab:,}")
    vocabulary.ends = settings.ends(vocabulary)
    return vocabulary


def _is_of_bytes(file: Path) -> bool:
    """Whether it is what we export where a byte is a token: we need no library for that."""
    return file.exists() and read_table(file) == tokenizer_of_bytes()


def _chat(settings: Settings, vocabulary: Vocabulary) -> ChatFormat:
    """The folder's template, whose end of a turn ends a text from now on; the plain format where there is none."""
    if settings.template is None:
        return PlainChat()
    if not isinstance(vocabulary, TokenizerVocabulary):
        log.warning("the chat_template in %s is not used, as the model's tokens are bytes", settings.template.where)
        return PlainChat()
    chat = TemplateChat(vocabulary.tokens, settings.template, settings.named, settings.begins)
    if chat.end_of_turn is not None:
        vocabulary.ends |= {chat.end_of_turn}
    return chat
