"""The tokens of a run's model: bytes, or those of the tokenizer that its manifest names, wherever that is to be had."""

from __future__ import annotations

from pathlib import Path

from shoal.node.home import find_home
from shoal.node.serve.text import Bytes, Codec, Tokenized, read_tokenizer
from shoal.node.spec.manifest import Manifest
from shoal.protocol.errors import LocalError


def run_codec(manifest: Manifest, place: Path, chosen: str) -> Codec:
    """`place` is a checkpoint, or in a node's home; `chosen` is a tokenizer's file, if the owner names one.

    LocalError if the run's tokenizer is nowhere here.
    """
    data, vocab = manifest.data, manifest.model.vocab
    if not data.tokenizer:
        if chosen:
            raise LocalError("the run's tokens are bytes: serve it without --tokenizer")
        return Bytes()
    if chosen:
        content = read_tokenizer(Path(chosen))
    else:
        from shoal.node.dataset.tokenizer import find_tokenizer

        content = find_tokenizer(data, [*place.resolve().parents, find_home().root])
    what = chosen or data.tokenizer
    codec = Tokenized(content, frozenset(), special=False, what=what)
    if codec.size > vocab:
        raise LocalError(f"the tokenizer {data.tokenizer} has {codec.size:,} tokens, and the run's model {vocab:,}")
    codec.ends = ends_of(codec, data.end_of_text, what)
    return codec


def ends_of(codec: Tokenized, end_of_text: str, what: str) -> frozenset[int]:
    """The token that ends a text, if there is one; LocalError if the tokenizer, which is `what`, does not know it."""
    if not end_of_text:
        return frozenset()
    end = codec.tokens.token_to_id(end_of_text)
    if end is None:
        raise LocalError(f"the run's end_of_text {end_of_text!r} is no token of {what}")
    return frozenset({end})
