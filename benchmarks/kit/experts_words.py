"""What `make experts` says in the end: Markdown for people, plain values for programs."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kit.experts_play import Phase
from kit.experts_recipe import Recipe
from kit.experts_table import Table
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.requirements import parameters

SEED, APART, CHANCE = "the seed, together", "experts, apart", "by chance, apart"


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """`phases` by what was done in them, `dense` the tokens of each dense model; `mixed` and `random` name rows.

    The first of `mixed` is of all experts.
    """

    phases: Mapping[str, Phase]
    dense: Mapping[str, int]
    table: Table
    prior: Mapping[str, float]
    mixed: tuple[str, ...]
    random: str


def report(recipe: Recipe, outcome: Outcome, seconds: float) -> str:
    """The whole report."""
    family, experts = recipe.family, experts_of(recipe.family)
    method, model = family.method, family.model
    now = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    prior = ", ".join(f"{name} {share:.2f}" for name, share in outcome.prior.items())
    return "\n".join(
        [
            f"# Experts apart: {family.name}, seed {family.seed}",
            "",
            f"{now}, {machine}, {seconds / 60:.1f} minutes.",
            "",
            f"{len(experts.parts)} peers; models of {parameters(model):,} parameters, context {model.context}; AdamW, "
            f"rate {method.inner_lr:g}, batch {method.batch}; {recipe.seed_steps} steps of the seed together, then "
            f"{experts.steps} of each expert ({method.batch * model.context * experts.steps:,} tokens).",
            "",
            *_traffic(outcome.phases),
            "",
            "Validation loss, nats per byte:",
            "",
            *outcome.table.lines(),
            "",
            f"Prior of the ensemble: {prior}.",
            *_verdicts(outcome),
            "",
        ]
    )


def facts(recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    """The same as values."""
    return {
        "family": recipe.family.model_dump(mode="json"),
        "seed_steps": recipe.seed_steps,
        "phases": {name: {**asdict(phase), "folder": str(phase.folder)} for name, phase in outcome.phases.items()},
        "dense_tokens": dict(outcome.dense),
        "losses": {name: dict(row) for name, row in outcome.table.rows.items()},
        "prior": dict(outcome.prior),
    }


def _traffic(phases: Mapping[str, Phase]) -> list[str]:
    lines = ["| phase | seconds | bytes sent to train | bytes sent for all else |", "| --- | ---: | ---: | ---: |"]
    for name, each in phases.items():
        lines.append(f"| {name} | {each.seconds:.0f} | {each.traffic.training:,} | {each.traffic.others:,} |")
    return lines


def _verdicts(outcome: Outcome) -> list[str]:
    table, full = outcome.table, outcome.mixed[0]  # not the best of them: that would be chosen by the texts scored
    lines = []
    for name in (*outcome.dense, outcome.random):
        gain = table.mean(name) - table.mean(full)
        verb = "beats" if gain > 0 else "loses to"
        lines.append(f"The {full} {verb} {name} by {abs(gain):.4f} on average over the domains.")
    return lines
