"""The program of short-lived one-thread processes that compute with torch, so that `shoal up` need not load it.

    python -m shoal.node.client.up.job RESULT.json corpus COLUMN PATH...
    python -m shoal.node.client.up.job RESULT.json validate MANIFEST STATE|initial DEVICE PATH...
    python -m shoal.node.client.up.job RESULT.json merge MANIFEST FILE STATE...
    python -m shoal.node.client.up.job RESULT.json verify CHECKPOINT...
    python -m shoal.node.client.up.job RESULT.json baseline MANIFEST MEMBERS ROUNDS NUMBER PATH...

PATH... is the text of --data, if any. --weights=FOLDER may come before all other arguments, several times. The result
is written to the file at once, as JSON; on failure the exit status is 1, and the reason is on stderr. Tasks that take
long tell how far they are in RESULT.share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.node.base.atomic import replace_file
from shoal.node.base.room import or_no_room
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.up.processes import WEIGHTS, share_file
from shoal.node.extensions import register_extensions
from shoal.node.manifest.data import Columns
from shoal.node.manifest.manifest import load_manifest
from shoal.node.training.checkpoint.read import load
from shoal.node.training.data.corpus import load_corpus, read_files, texts_corpus
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build, layout_of
from shoal.node.training.state.file import load_state, save_weights
from shoal.node.training.state.shape import shape_of
from shoal.node.training.trainer import baseline
from shoal.node.training.trainer.device import choose_device
from shoal.node.training.trainer.evaluate import AT_MOST, END_OF_TEXT, generate, validation_loss
from shoal.protocol.base.errors import LocalError, ShoalError, with_code
from shoal.protocol.base.shortages import is_temporary

INITIAL = "initial"  # instead of a state file: the model as the manifest's seed makes it
TOLD_EVERY = 0.25  # seconds
SAMPLE_BYTES = 400  # of text that the trained model writes

Tell = Callable[[float], None]
"""Gets the share of the work that is done, from 0 to 1."""


def corpus(column: str, domain: str, *data: str) -> dict[str, Any]:
    """Digest and sizes of the text of --data; `column` and `domain` name the columns of tables that hold text."""
    texts, left_out = read_files([Path(path) for path in data], Columns(column, domain))
    found = texts_corpus(texts, left_out.files.total)
    return {
        "digest": found.digest.hex(),
        "files": found.files,
        "skipped": found.skipped,
        "left_out": left_out.words(),
        "train": len(found.train),
        "validation": len(found.validation),
    }


def validate(
    manifest_file: str,
    state: str,
    device: str,
    *data: str,
    weights: Sequence[Path] = (),
    tell: Tell = lambda share: None,
) -> dict[str, Any]:
    """The validation loss of a state, on how many tokens, its number of parameters, and (of a trained one) a text."""
    manifest = load_manifest(Path(manifest_file))
    model = build(manifest, weights)
    layout = Layout.of(model)
    if state != INITIAL:
        layout.load(load_state(Path(state), shape_of(manifest, layout)).current.vectors[PARAMETERS], model)
    text = load_corpus(manifest.data, [Path(path) for path in data], manifest.model.vocab or None).validation
    model.to(choose_device(device))  # one CPU thread is slow for a model that was trained on a GPU
    loss, tokens = validation_loss(model, text, manifest.model.context, AT_MOST, tell)
    sample = ""
    if state != INITIAL and manifest.data.name != "digits" and not manifest.data.tokenizer:
        written = generate(model, bytes([END_OF_TEXT]), SAMPLE_BYTES, context=manifest.model.context)
        sample = written.decode(errors="replace")
    return {"loss": loss, "validation_tokens": tokens, "parameters": layout.size, "sample": sample}


def merge(manifest_file: str, file: str, *states: str) -> dict[str, Any]:
    """Write the mean of the replicas in `states` to `file`, as a state of the newest one's round."""
    manifest = load_manifest(Path(manifest_file))
    shape = shape_of(manifest, layout_of(manifest.model))
    weights, newest = torch.zeros(shape.layout.size), 0
    for state in states:  # one at a time: all of them may be more than there is memory
        held = load_state(Path(state), shape).current
        weights += held.vectors[PARAMETERS]
        newest = max(newest, held.round)
    weights /= len(states)
    save_weights(shape, weights.numpy(), newest, Path(file))
    return {"file": file, "replicas": len(states)}


def verify(*checkpoints: str) -> dict[str, Any]:
    """Read checkpoints through; the damaged ones, each with its problem."""
    damaged = {}
    for checkpoint in checkpoints:
        try:
            load(Path(checkpoint))
        except LocalError as error:
            if is_temporary(error):
                raise
            damaged[checkpoint] = str(error)
    return {"damaged": damaged}


def train_baseline(
    manifest_file: str,
    members: str,
    rounds: str,
    number: str,
    *data: str,
    weights: Sequence[Path] = (),
    tell: Tell = lambda share: None,
) -> dict[str, Any]:
    """Run reference training `number`: its validation loss, and its training loss over tokens as a curve."""
    manifest = load_manifest(Path(manifest_file))
    paths = [Path(path) for path in data]
    training = baseline.references(manifest, int(members), int(rounds), paths)[int(number)]
    result = baseline.run(training, TrainerOptions(weights=tuple(map(str, weights))), tell)
    return {"loss": result.loss, "curve": result.curve}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "corpus": corpus,
    "validate": validate,
    "merge": merge,
    "verify": verify,
    "baseline": train_baseline,
}
BUILDING = ("validate", "baseline")  # tasks that build a model, and take long


def do(argv: list[str]) -> int:
    """Do the task and write its result; returns the exit code."""
    weights = [Path(each.removeprefix(WEIGHTS)) for each in argv if each.startswith(WEIGHTS)]
    result, task, *arguments = [each for each in argv if not each.startswith(WEIGHTS)]
    torch.set_num_threads(1)
    register_extensions()
    try:
        with or_no_room(f"the job '{task}' cannot be done"):
            more = {"weights": weights, "tell": _teller(Path(result))} if task in BUILDING else {}
            answer = TASKS[task](*arguments, **more)
    except ShoalError as error:
        print(with_code(str(error), error.code), file=sys.stderr)
        return 1
    replace_file(Path(result), [json.dumps(answer).encode()])
    return 0


def _teller(result: Path) -> Tell:
    """Writes the share to the file for it, now and then."""
    file, told_at = share_file(result), 0.0

    def tell(share: float) -> None:
        nonlocal told_at
        if (now := time.monotonic()) - told_at >= TOLD_EVERY or share == 1:
            told_at = now
            file.write_text(f"{share:.4f}", encoding="ascii")  # whoever reads half of it reads another soon

    return tell


def main() -> None:
    """Do what the process's arguments say."""
    sys.exit(do(sys.argv[1:]))


if __name__ == "__main__":
    main()
