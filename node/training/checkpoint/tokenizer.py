"""The tokenizer.json of a run: finding it on this machine, and writing it beside an exported model for transformers.

It comes from a packed copy of the run's data, or from the hub. An exported folder has

    tokenizer.json          the run's, but without special tokens around a text, which the model has never seen
    tokenizer_config.json   which class of transformers reads it, and which token ends a text
    config.json, generation_config.json   the number of that token

If a run's tokens are bytes, a tokenizer is written in which each byte is the token of its number. It has no special
tokens: transformers would take the letter that stands for byte 0 for the end of a text wherever a text has that letter.
So only the model's settings name the end of a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.node.base.home import find_home
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.about import read_about
from shoal.node.training.data.corpus import tokenizer_file
from shoal.node.training.data.hub import TOKENIZER_FILE, from_hub
from shoal.node.training.data.store import PACKED
from shoal.node.training.data.texts import read_pack
from shoal.node.training.data.tokens import Tokenizer
from shoal.node.training.data.vocabulary import read_tokenizer
from shoal.node.training.models.llama import END_OF_TEXT
from shoal.protocol.base.errors import LocalError


def find_tokenizer(data: DataSpec, homes: Iterable[Path]) -> bytes:
    """The tokenizer's content; `homes` are folders of nodes that may have the data. LocalError if it is not found."""
    if data.is_from_hub:
        return from_hub(data)
    for home in homes if data.digest else ():
        if (packed := home / "data" / data.digest / PACKED).is_file():
            return tokenizer_file(data, read_pack(packed))
    raise LocalError(
        f"the run's tokenizer {data.tokenizer} is among its data, and this machine has no packed copy of these: name "
        f"the file with --tokenizer",
        code="tokenizer-missing",
    )


def tokenizer_of_checkpoint(checkpoint: Path, chosen: str) -> bytes | None:
    """The tokenizer.json of a checkpoint's run, None if its tokens are bytes; `chosen` is a file to take instead.

    Raises LocalError if it is not found, or if a file is chosen for a run without a tokenizer.
    """
    data = read_about(checkpoint).decoded_manifest().data
    if not data.tokenizer:
        if chosen:
            raise LocalError("the run's tokens are bytes: it has no tokenizer", code="other-tokenizer")
        return None
    if chosen:
        return read_tokenizer(Path(chosen))
    return find_tokenizer(data, [*checkpoint.resolve().parents, find_home().root])


BYTES = 256
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # bytes that GPT-2's byte level keeps
CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
ENDS = ("eos_token_id", "pad_token_id")


def write_tokenizer(manifest: Manifest, content: bytes | None, folder: Path) -> None:
    """Writes the run's tokenizer into an exported folder; `content` is None if it was not found, or tokens are bytes.

    Raises LocalError if it does not fit the run's model.
    """
    data, vocab = manifest.data, manifest.model.vocab
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.model.context,
        "clean_up_tokenization_spaces": False,
    }
    end: int | None = END_OF_TEXT
    if data.tokenizer:
        end = Tokenizer(data, content, vocab).end if content is not None else None
        if data.end_of_text:
            about["eos_token"] = data.end_of_text
    if manifest.model.name == "llama":
        _set(folder, dict.fromkeys(ENDS, end))
    elif end is not None:  # if it is unknown, the config's own setting stays
        _set(folder, {"eos_token_id": end})  # not the padding: some types number positions from its index
    if content is not None:
        _write(folder / TOKENIZER_FILE, json.loads(content) | {"post_processor": None})
    elif data.tokenizer or vocab < BYTES:
        return
    else:
        _write(folder / TOKENIZER_FILE, tokenizer_of_bytes())
    _write(folder / TOKENIZER_CONFIG, about)


def tokenizer_of_bytes() -> dict[str, Any]:
    """The content of a tokenizer.json in which each byte is the token of its number, without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(_letters())},
            "merges": [],
        },
    }


def _letters() -> list[str]:
    """The letter for each byte in such a file: its own if it is printable, else the next letter from U+0100 on."""
    hidden = [byte for byte in range(BYTES) if byte not in PRINTABLE]
    return [chr(byte) if byte in PRINTABLE else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]


def _set(folder: Path, settings: Mapping[str, int | None]) -> None:
    """Sets these settings in both files of a model's settings; a folder of adapters has none."""
    if (folder / CONFIG).exists():
        for path in (folder / CONFIG, folder / GENERATION):
            table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            _write(path, {**table, **settings})


def _write(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
