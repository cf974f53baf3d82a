"""The tokens of a run's model: bytes, or those of the tokenizer that its manifest names, wherever that is to be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoal.node.corpus import among
from shoal.node.data_spec import DataSpec
from shoal.node.dataset.pack import read_pack
from shoal.node.dataset.store import PACKED
from shoal.node.home import find_home
from shoal.node.manifest import Manifest
from shoal.node.serve.text import Bytes, Codec, Tokenized, read_tokenizer
from shoal.node.tokens import from_hub
from shoal.protocol.errors import LocalError


def run_codec(manifest: Manifest, checkpoint: Path, chosen: str) -> Codec:
    """`chosen` is a tokenizer's file, if the owner names one. LocalError if the run's tokenizer is nowhere here."""
    data, vocab = manifest.data, manifest.model.vocab
    if not data.tokenizer:
        if chosen:
            raise LocalError("the run's tokens are bytes: serve it without --tokenizer")
        return Bytes()
    codec = Tokenized(_content(data, checkpoint, chosen), frozenset(), special=False, what=chosen or data.tokenizer)
    if codec.size > vocab:
        raise LocalError(f"the tokenizer {data.tokenizer} has {codec.size:,} tokens, and the run's model {vocab:,}")
    if data.end_of_text:
        end = codec.tokens.token_to_id(data.end_of_text)
        if end is None:
            raise LocalError(f"the run's end_of_text {data.end_of_text!r} is no token of {chosen or data.tokenizer}")
        codec.ends = frozenset({end})
    return codec


def _content(data: DataSpec, checkpoint: Path, chosen: str) -> bytes:
    """The tokenizer.json."""
    if chosen:
        return read_tokenizer(Path(chosen))
    if data.is_from_hub:
        return from_hub(data)
    for packed in _packed(data, checkpoint):
        return among(data, read_pack(packed))
    raise LocalError(
        f"the run's tokenizer {data.tokenizer} is among its data, and this machine has no packed copy of these: name "
        f"the file with --tokenizer"
    )


def _packed(data: DataSpec, checkpoint: Path) -> Iterator[Path]:
    """Where the run's data may lie: in the home that the checkpoint is in, or in this user's."""
    if data.digest:
        homes = [*checkpoint.resolve().parents, find_home().root]
        places = (home / "data" / data.digest / PACKED for home in homes)
        yield from (place for place in places if place.is_file())
