"""The tokenizer.json of a run's data, wherever this machine has it: in a packed copy of these, or from the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shoal.node.checkpoint.about import read_about
from shoal.node.dataset.corpus import among
from shoal.node.dataset.pack import read_pack
from shoal.node.dataset.store import PACKED
from shoal.node.dataset.tokens import from_hub
from shoal.node.home import find_home
from shoal.node.serve.text import read_tokenizer
from shoal.node.spec.data import DataSpec
from shoal.protocol.errors import LocalError


def find_tokenizer(data: DataSpec, homes: Iterable[Path]) -> bytes:
    """Its content; `homes` are folders of nodes that may have the data. LocalError if it is nowhere here."""
    if data.is_from_hub:
        return from_hub(data)
    for home in homes if data.digest else ():
        if (packed := home / "data" / data.digest / PACKED).is_file():
            return among(data, read_pack(packed))
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
