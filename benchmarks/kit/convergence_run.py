"""One training of convergence.py, whose result is a line of JSON, and the file of these lines.

A line has the fields of the `Job` and its results; a loss that is not finite is null. A job that has a line is not
trained again, so a benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from kit.recipes import SIZES, Recipe, manifest, training
from shoal.node.lab.study import prepare, run
from shoal.node.training.data.corpus import Corpus, stdlib_corpus
from shoal.protocol.base.errors import LocalError

VALIDATION = 64 << 10  # bytes of held-out text
LOOKS = 20  # measurements of the averaged model in a training

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One training: of a method or a reference, by a recipe."""

    name: str
    recipe: Recipe
    seed: int
    steps: int
    size: str = "small"
    choosing: bool = False  # for the grid: validated on other text than the reported results

    def asked(self) -> Line:
        """The job's fields of its line."""
        return {**asdict(self), "recipe": dict(self.recipe)}


def train(job: Job, device: str) -> Line:
    """Trains on one thread of the processor, or on a GPU; the job's line."""
    torch.set_num_threads(1)
    size = SIZES[job.size]
    began = time.monotonic()
    made, corpus = training(job.name, job.recipe, job.steps), held_out(stdlib_corpus(), job.choosing)
    study, workers = prepare(made, manifest(size, job.recipe, job.seed, job.steps), corpus.train, device)
    tokens = job.steps * size.batch * size.model.context * made.lanes
    line: Line = {**job.asked(), "device": device, "tokens": tokens, "loss": None}
    try:
        result = run(study, workers, corpus, job.steps, VALIDATION, every=max(1, job.steps // LOOKS))
    except LocalError as error:
        return {**line, "failed": str(error)}
    return {
        **line,
        "loss": number(result.merged),
        "replicas": [number(each) for each in result.replicas],
        "curve": [(step, number(loss)) for step, loss in result.validation],
        "parameters": result.parameters,
        **result.traffic._asdict(),
        "greatest": result.greatest,
        "seconds": round(time.monotonic() - began, 1),
    }


def held_out(corpus: Corpus, choosing: bool) -> Corpus:
    """The corpus with the first part of its validation text, or, for choosing settings, with the last part."""
    text = corpus.validation
    return replace(corpus, validation=text[-VALIDATION:] if choosing else text[:VALIDATION])


def number(value: float) -> float | None:
    """None in place of NaN and infinity, which JSON does not have."""
    return round(value, 5) if isfinite(value) else None


def missing(jobs: Sequence[Job], lines: Sequence[Line]) -> list[Job]:
    """The jobs that have no line yet."""
    return [job for job in jobs if not any(answers(line, job) for line in lines)]


def answers(line: Line, job: Job) -> bool:
    """Whether a line is the result of a job."""
    return all(line.get(key) == value for key, value in job.asked().items())


def read(path: Path) -> list[Line]:
    """The lines of a file; none if there is no file. An incomplete last line is ignored."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def append(path: Path, line: Line) -> None:
    """Appends a line, in place of an incomplete last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes() if path.exists() else b""
    if cut := len(whole) - (whole.rfind(b"\n") + 1):
        with path.open("rb+") as file:
            file.truncate(len(whole) - cut)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
