"""The tokenizer.json of a run: found on this machine, and written beside an exported model as transformers opens it.

It lies in a packed copy of the run's data, or comes from the hub. In an exported folder there are

    tokenizer.json          the run's, but without what puts tokens around a text: the model has never seen these
    tokenizer_config.json   which class of the library reads it, and which token ends a text
    config.json, generation_config.json   the number of that token

A run of bytes has a tokenizer as well: each byte is a token of that number, and none is a special one: the letter that
stands for byte 0 in it would be taken for the end of a text wherever a text has that letter. So the end of a text is
named in the model's settings alone.
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
from shoal.node.training.data.store import PACKED
from shoal.node.training.data.texts import read_pack
from shoal.node.training.data.tokens import TOKENIZER_FILE, Tokenizer, from_hub
from shoal.node.training.data.vocabulary import read_tokenizer
from shoal.node.training.models.llama import END_OF_TEXT
from shoal.protocol.base.errors import LocalError


def find_tokenizer(data: DataSpec, homes: Iterable[Path]) -> bytes:
    """Its content; `homes` are folders of nodes that may have the data. LocalError if it is nowhere here."""
    if data.is_from_hub:
        return from_hub(data)
    for home in homes if data.digest else ():
        if (packed := home / "data" / data.digest / PACKED).is_file():
            return tokenizer_file(data, read_pack(packed))
    raise LocalError(
        f"the run's tokenizer {data.tokenizer} is among its data, and this machine has no packed copy of these: name "
        f"the file with --tokenizer"
    )


def tokenizer_of_checkpoint(checkpoint: Path, chosen: str) -> bytes | None:
    """The tokenizer.json of a checkpoint's run, None if its tokens are bytes; `chosen` is a file that its owner names.

    LocalError if it is nowhere here, or there is none.
    """
    data = read_about(checkpoint).decoded_manifest().data
    if not data.tokenizer:
        if chosen:
            raise LocalError("the run's tokens are bytes: it has no tokenizer")
        return None
    if chosen:
        return read_tokenizer(Path(chosen))
    return find_tokenizer(data, [*checkpoint.resolve().parents, find_home().root])


BYTES = 256
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # bytes that stand for themselves in GPT-2's
CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
ENDS = ("eos_token_id", "pad_token_id")


def write_tokenizer(manifest: Manifest, content: bytes | None, folder: Path) -> None:
    """Write the run's tokenizer, of this content, into an exported folder; None: it is not to be had, or bytes.

    LocalError if it is not one for the run's model.
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
    elif end is not None:  # else a config of others' says what its author knows
        _set(folder, {"eos_token_id": end})  # and not what pads: some types count their positions from that
    if content is not None:
        _write(folder / TOKENIZER_FILE, json.loads(content) | {"post_processor": None})
    elif data.tokenizer or vocab < BYTES:
        return
    else:
        _write(folder / TOKENIZER_FILE, tokenizer_of_bytes())
    _write(folder / TOKENIZER_CONFIG, about)


def tokenizer_of_bytes() -> dict[str, Any]:
    """A tokenizer.json in which each byte is the token of its number, and nothing is merged."""
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
    """What stands for each byte in such a file: itself if it can be seen, else the next letter from U+0100 on."""
    hidden = [byte for byte in range(BYTES) if byte not in PRINTABLE]
    return [chr(byte) if byte in PRINTABLE else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]


def _set(folder: Path, settings: Mapping[str, int | None]) -> None:
    """The model's settings are these, in both files; where there is no model, as with adapters, there are none."""
    if (folder / CONFIG).exists():
        for path in (folder / CONFIG, folder / GENERATION):
            table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            _write(path, {**table, **settings})


def _write(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
