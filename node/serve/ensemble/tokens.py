"""The tokens of a folder of experts: what its table says they are, or what its owner chooses."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from shoal.node.serve.ensemble.table import FETCH, Table
from shoal.node.serve.run_tokens import ends_of
from shoal.node.serve.served import BYTE_TOKENS
from shoal.node.serve.text import BYTES, Bytes, Codec, Tokenized, read_tokenizer
from shoal.protocol.errors import LocalError

TOKENIZER_FILE = "tokenizer.json"


def table_codec(folder: Path, table: Table, vocab: int, chosen: str) -> Codec:
    """`chosen` is a tokenizer's file, or BYTE_TOKENS; LocalError if the experts' tokens are not known, or others."""
    told = table.tokens
    file = Path(chosen) if chosen else folder / TOKENIZER_FILE
    are_bytes = told.kind == "bytes" if told is not None else vocab <= BYTES and not file.exists()
    if chosen == BYTE_TOKENS or (not chosen and are_bytes):
        return Bytes()
    if not chosen and not file.exists():
        raise LocalError(
            f"the experts have {vocab:,} tokens, and {folder} has no {TOKENIZER_FILE}: name the one of the family's "
            f"data with --tokenizer"
        )
    content = read_tokenizer(file)
    if told is not None and told.blake3 and not chosen and blake3(content).hexdigest() != told.blake3:
        raise LocalError(f"{file} is not the tokenizer of these experts: {FETCH}")
    codec = Tokenized(content, frozenset(), special=False, what=str(file))
    if codec.size > vocab:
        raise LocalError(f"{file} has {codec.size:,} tokens, and the experts {vocab:,}")
    codec.ends = ends_of(codec, told.end_of_text if told is not None else "", str(file))
    return codec
