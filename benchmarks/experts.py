"""Experts that are trained apart against one dense model, by real peers: what `make experts` runs.

    python benchmarks/experts.py                     four peers, four domains of the standard library
    python benchmarks/experts.py --steps 2000 --seed-steps 1000
    python benchmarks/experts.py --family examples/experts.toml --out runs/experts

1. Four daemons train a seed together, on the texts of all domains: they average every few steps.
2. Each trains an expert on one domain, from the seed, alone. What they sent meanwhile is printed, by their
   own counters.
3. The same again with texts that are dealt out by chance.
4. Two dense models go on from the seed, on the texts of all, for as many tokens as all experts together: by as many
   steps with a batch four times as large, as four synchronous peers would, and by four times as many steps.
5. A table of losses per domain on held-out texts: report.md, report.json and log.txt in the folder --out.

The exit code tells whether it worked, not who has won.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kit.ending import ended, processes, whole
from kit.experts_play import Phase, Play
from kit.experts_recipe import Recipe, read_family
from kit.experts_table import Table, domains, model_of
from kit.experts_train import Job, read, train
from torch import Tensor

from shoal.node.client.up.plan import prepare_folder
from shoal.node.client.up.processes import Children
from shoal.node.experts.files import read_parameters
from shoal.node.experts.merging import average, pcb
from shoal.node.experts.parts import experts_of
from shoal.node.inference.ensemble.table import checked, read_table
from shoal.node.manifest.requirements import parameters
from shoal.node.training.checkpoint.read import load
from shoal.node.training.methods.method import PARAMETERS

ROOT = Path(__file__).parent.parent
SEED, APART, CHANCE = "the seed, together", "experts, apart", "by chance, apart"
RANDOM = "by chance, ensemble"
SEED_STEPS, HELD_OUT = 700, 24_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The results of all training, for the report."""

    phases: Mapping[str, Phase]  # by name
    dense: Mapping[str, int]  # the tokens of each dense model, by name
    table: Table
    prior: Mapping[str, float]  # by expert
    mixed: tuple[str, ...]  # rows of ensembles of the experts; the first is of all experts
    random: str  # the row of the ensemble of experts on random parts


def main() -> int:
    """Play, train, measure, report."""
    options = _parse()
    recipe = Recipe(read_family(options.family, options.steps, options.seed), options.seed_steps)
    recipe.check()
    out, _ = prepare_folder(options.out)
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        began = time.monotonic()

        def say(text: str) -> None:
            print(text, flush=True)
            print(f"{time.monotonic() - began:8.1f} {text}", file=log, flush=True)

        outcome = _measure(recipe, out, _play(recipe, out, say), options.held_out, say)
        text = report(recipe, outcome, time.monotonic() - began)
        (out / "report.md").write_text(text, encoding="utf-8")
        (out / "report.json").write_text(json.dumps(facts(recipe, outcome), indent=1), encoding="utf-8")
        say(f"\n{text}\nall files: {out}")
    return 0


def _play(recipe: Recipe, out: Path, say: Say) -> dict[str, Phase]:
    async def play(peers: Play) -> dict[str, Phase]:
        await peers.start()
        seed = await peers.seed()
        apart = await peers.family(recipe.family, seed.folder)
        return {SEED: seed, APART: apart, CHANCE: await peers.family(recipe.by_chance, seed.folder)}

    with Children() as children:  # whatever happens, none of them is left
        return asyncio.run(play(Play(recipe, out, children, say)))


def _dense(recipe: Recipe, out: Path, start: Path) -> dict[str, Job]:
    """The dense models to train, by the rows' names: each on as many tokens as all experts together."""
    members, steps = len(experts_of(recipe.family).parts), experts_of(recipe.family).steps
    wide = Job(f"dense, batch x{members}", recipe.dense(steps), tuple(range(members)), start, out / "dense" / "wide.pt")
    long = Job(f"dense, steps x{members}", recipe.dense(steps * members), (0,), start, out / "dense" / "long.pt")
    return {job.name: job for job in (wide, long)}


def _measure(recipe: Recipe, out: Path, phases: dict[str, Phase], held_out: int, say: Say) -> Outcome:
    family = recipe.family
    seed = load(phases[SEED].folder).vectors[PARAMETERS]
    start = out / "dense" / "seed.pt"
    start.parent.mkdir()
    torch.save(seed, start)
    jobs = _dense(recipe, out, start)
    say(f"training {' and '.join(jobs)}")
    with processes(len(jobs)) as pool:
        dense = dict(zip(jobs, pool.map(train, jobs.values()), strict=True))
    say("measuring")
    torch.set_num_threads(1)
    table = Table(domains(family, recipe.dense(experts_of(family).steps), held_out), family.model.context)
    experts, chance = (_experts(phases[name].folder) for name in (APART, CHANCE))
    alone = {"seed": seed, **{name: read(file) for name, file in dense.items()}}
    alone |= {f"expert {name}": theta for name, theta in experts.items()}
    merged = {"average": average(list(experts.values())), "PCB": pcb(seed, list(experts.values()))}
    table.single({name: model_of(family.model, family, theta) for name, theta in alone.items()})
    mixed = dict.fromkeys(("ensemble",), None) | {"ensemble, top 2": 2, "ensemble, top 1": 1}
    models = [model_of(family.model, family, theta) for theta in experts.values()]
    prior = table.mixed(models, mixed)
    table.single({name: model_of(family.model, family, theta) for name, theta in merged.items()})
    drawn = [model_of(family.model, family, theta) for theta in chance.values()]
    table.mixed(drawn, {RANDOM: None, f"{RANDOM}, top 1": 1})
    shares = dict(zip(experts, prior.tolist(), strict=True))
    return Outcome(phases, {name: job.tokens for name, job in jobs.items()}, table, shares, tuple(mixed), RANDOM)


def _experts(folder: Path) -> dict[str, Tensor]:
    """The parameters of all experts that a family has published."""
    return {each.name: read_parameters(checked(folder, each), each.model) for each in read_table(folder).experts}


# -- the report -----------------------------------------------------------------------------------------------------


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


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", type=Path, default=ROOT / "examples" / "experts.toml", help="of which parts")
    parser.add_argument("--steps", type=whole(1), help="of each expert; default: as the family's manifest says")
    parser.add_argument(
        "--seed-steps", type=whole(1), default=SEED_STEPS, help=f"together, first; default: {SEED_STEPS}"
    )
    parser.add_argument(
        "--held-out", type=whole(1000), default=HELD_OUT, help=f"tokens of each domain; default: {HELD_OUT}"
    )
    parser.add_argument("--seed", type=whole(0), help="of all that is drawn; default: as the family's manifest says")
    parser.add_argument("--out", type=Path, help="a folder that is new or empty; default: one in runs/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended("experts", main))
