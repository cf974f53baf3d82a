"""Exports a checkpoint as a folder that Hugging Face's transformers opens.

The model's kind (node/training/models/) writes the model's files; the tokenizer is added.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shoal.node.base.atomic import force
from shoal.node.base.refusals import CODES
from shoal.node.base.room import check_disk
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.read import load
from shoal.node.training.checkpoint.tokenizer import write_tokenizer
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.registry import kind_of
from shoal.protocol.base.errors import LocalError


def export(checkpoint: Path, out: Path, tokenizer: bytes | None = None) -> None:
    """Verifies a checkpoint and writes its model to `out`, which must not exist.

    `tokenizer` is the content of the run's tokenizer.json, if it has one and it was found. Raises LocalError if that
    fails, and leaves nothing in `out`.
    """
    held = load(checkpoint)
    manifest, spec = held.manifest, held.manifest.model
    if out.exists():
        raise LocalError(f"{out} exists: name a new folder", code="already-there")
    check_disk(out, sum(each.stat().st_size for each in checkpoint.glob(MODEL)), f"the model in {out}")
    fresh = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        fresh.mkdir(parents=True)
        kind_of(spec).write(spec, held.vectors[PARAMETERS], fresh)
        write_tokenizer(manifest, tokenizer, fresh)
        for path in (*fresh.iterdir(), fresh):
            force(path)
        fresh.rename(out)
    except OSError as error:
        raise LocalError(
            f"cannot write {out}: {error.strerror or error}", code=CODES.get(error.errno or 0, "unwritable")
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # after success it has another name
