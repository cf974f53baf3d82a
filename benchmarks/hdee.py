"""Heterogeneous experts (HDEE) against homogeneous ones at equal compute: the table of docs/experts.md.

    python benchmarks/hdee.py --seeds 3 --steps 700 --jobs 2

One process each, without a network: an expert's training is the same whoever's machine it is on. For each seed:

1. A seed model of each size, on the texts of all domains. By its middle one, and on held-out texts that are not scored,
   domains are ranked by two rules, each of which says who gets more and who less:
   loss: the domain on which the loss is highest gets more;
   fall: the domain on which it falls furthest in a short training of the expert gets more.
2. Homogeneous: all experts of the middle size, equal steps (MHo-IHo).
   Sizes: the first domain has the large model, the last the small one (MHe-IHo).
   Steps: the first domain has half as many steps again, the last half as many (MHo-IHe).
3. All arms have the same compute, the sum over experts of 6 x parameters x tokens; the steps of the arm of sizes are
   what makes it so, up to a round. The report says what each has. Seeds and probes are not counted, as in HDEE.

A training that is done is a file in the folder --out, and is not made again there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from kit.ending import ended, processes, whole
from kit.experts_recipe import Recipe, read_family
from kit.experts_table import Domain, Table, domains, model_of
from kit.experts_train import Job, read, train

from shoal.node.experts.evaluation import losses, scores
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import ModelSpec
from shoal.node.manifest.requirements import parameters
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest

ROOT = Path(__file__).parent.parent
SMALL, MIDDLE, LARGE = "small", "middle", "large"
WIDTHS = {SMALL: 0.75, MIDDLE: 1.0, LARGE: 1.25}  # of the family's model
RULES = ("loss", "fall")
PROBE = 2  # rounds


@dataclass(frozen=True, slots=True)
class Expert:
    """What a domain gets in an arm."""

    size: str
    steps: int


def main() -> int:
    """Train all seeds, print the table."""
    options = _parse()
    families = [read_family(options.family, options.steps, seed) for seed in range(options.seeds)]
    family = families[0]
    Recipe(family, options.seed_steps).check()
    if options.seed_steps % family.method.inner_steps:
        raise LocalError(f"--seed-steps {options.seed_steps} are no whole rounds of {family.method.inner_steps}")
    if not isinstance(family.model, ModelSpec):
        raise LocalError(f"sizes are those of Shoal's own decoder, and the family's model is {family.model.name}")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    text = "\n".join(_lines([_one(each, options) for each in families], family))
    (options.out / "report.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nall files: {options.out}")
    return 0


def _one(family: Manifest, options: argparse.Namespace) -> dict[str, Table]:
    """The tables of all arms with one seed."""
    recipe, steps = Recipe(family, options.seed_steps), experts_of(family).steps
    texts = domains(family, recipe.dense(steps), options.held_out)
    with processes(options.jobs) as pool:
        seeds = {size: _seed_job(recipe, size, options.out) for size in WIDTHS}
        files = dict(zip(seeds, pool.map(train, seeds.values()), strict=True))
        names = [each.name for each in texts]
        probe = [_expert_job(family, name, Expert(MIDDLE, PROBE * family.method.inner_steps), files) for name in names]
        probed = dict(zip(names, pool.map(train, probe), strict=True))
        arms = _arms(family, _ranks(family, files[MIDDLE], probed, texts))
        wanted = list(dict.fromkeys((part, expert) for arm in arms.values() for part, expert in arm.items()))
        trained = dict(
            zip(wanted, pool.map(train, [_expert_job(family, *each, files) for each in wanted]), strict=True)
        )
    tables = {}
    for name, arm in arms.items():
        table = tables[name] = Table(texts, family.model.context)
        experts = [model_of(_model(family, each.size), family, read(trained[part, each])) for part, each in arm.items()]
        table.mixed(experts, {"ensemble": None, "top 1": 1})
        print(f"seed {family.seed}, {name}: {_described(arm)}; {_compute(family, arm):.3g} operations", flush=True)
        print("\n".join(table.lines()), flush=True)
    return tables


def _arms(family: Manifest, ranks: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Expert]]:
    """What each domain gets; `ranks` has by each rule the domain that gets most first."""
    parts, steps = [part.name for part in experts_of(family).parts], experts_of(family).steps
    inner = family.method.inner_steps
    total = sum(parameters(_model(family, size)) for size in (SMALL, LARGE, *[MIDDLE] * (len(parts) - 2)))
    fair = round(steps * parameters(family.model) * len(parts) / total / inner) * inner
    half = steps // 2 // inner * inner
    arms = {"homogeneous": {name: Expert(MIDDLE, steps) for name in parts}}
    for rule, ranked in ranks.items():
        sizes = {ranked[0]: LARGE, ranked[-1]: SMALL}
        more = {ranked[0]: half, ranked[-1]: -half}
        arms[f"sizes by {rule}"] = {name: Expert(sizes.get(name, MIDDLE), fair) for name in parts}
        arms[f"steps by {rule}"] = {name: Expert(MIDDLE, steps + more.get(name, 0)) for name in parts}
    return arms


def _ranks(family: Manifest, seed: Path, probes: Mapping[str, Path], texts: Sequence[Domain]) -> dict[str, list[str]]:
    """The domains by each rule, the one that gets most first."""
    found: dict[str, dict[str, float]] = {rule: {} for rule in RULES}
    for each in texts:
        models = [model_of(family.model, family, read(file)) for file in (seed, probes[each.name])]
        before, after = losses(scores(models, each.for_prior, family.model.context))
        found["loss"][each.name], found["fall"][each.name] = before, before - after
    for rule, values in found.items():
        print(f"seed {family.seed}, {rule}: {', '.join(f'{name} {value:.3f}' for name, value in values.items())}")
    return {rule: sorted(values, key=lambda name: -values[name]) for rule, values in found.items()}


def _model(family: Manifest, size: str) -> ModelSpec:
    """The family's model, so much wider."""
    own, width = family.model, WIDTHS[size]
    assert isinstance(own, ModelSpec)
    return own.model_copy(update={"dim": round(own.dim * width), "hidden": round(own.hidden * width)})


def _seed_job(recipe: Recipe, size: str, out: Path) -> Job:
    manifest = recipe.dense(recipe.seed_steps)
    sized = Manifest.model_validate(manifest.model_dump() | {"model": _model(recipe.family, size).model_dump()})
    return Job(f"seed {size}", sized, (0,), None, out / f"seed-{size}-{sized.digest.hex()[:16]}.pt")


def _expert_job(family: Manifest, part: str, expert: Expert, seeds: Mapping[str, Path]) -> Job:
    """The training of an expert; its file is named after all that it depends on."""
    experts, seed = experts_of(family), seeds[expert.size]
    number = next(number for number, each in enumerate(experts.parts) if each.name == part)
    spec = experts.parts[number].model_copy(update={"steps": expert.steps, "model": _model(family, expert.size)})
    manifest = part_manifest(family, spec)
    name = digest("hdee", manifest.digest, seed.name.encode()).hex()[:16]
    return Job(part, manifest, (number + 1,), seed, seed.parent / f"{part}-{expert.size}-{expert.steps}-{name}.pt")


def _compute(family: Manifest, arm: Mapping[str, Expert]) -> float:
    """The sum over experts of 6 x parameters x tokens."""
    tokens = family.method.batch * family.model.context
    return float(sum(6 * parameters(_model(family, each.size)) * each.steps * tokens for each in arm.values()))


def _described(arm: Mapping[str, Expert]) -> str:
    return ", ".join(f"{part} {each.size} {each.steps}" for part, each in arm.items())


def _lines(found: Sequence[Mapping[str, Table]], family: Manifest) -> list[str]:
    """As Markdown: the mean over seeds, and of the last column how far seeds lie from it, at most."""
    names = [part.name for part in experts_of(family).parts]
    lines = [f"| arm | {' | '.join(names)} | mean |", f"| --- |{' ---: |' * (len(names) + 1)}"]
    for arm in found[0]:
        for row in found[0][arm].rows:
            cells = [sum(each[arm].rows[row][name] for each in found) / len(found) for name in names]
            means = [each[arm].mean(row) for each in found]
            middle = sum(means) / len(means)
            spread = max(abs(each - middle) for each in means)
            losses_of = " | ".join(f"{cell:.4f}" for cell in cells)
            lines.append(f"| {arm}, {row} | {losses_of} | {middle:.4f} ± {spread:.4f} |")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", type=Path, default=ROOT / "examples" / "experts.toml", help="of which parts")
    parser.add_argument("--seeds", type=whole(1), default=3, help="how many, from 0")
    parser.add_argument("--seed-steps", type=whole(1), default=400, help="of the seed models")
    parser.add_argument("--steps", type=whole(1), default=700, help="of a homogeneous expert")
    parser.add_argument("--held-out", type=whole(1000), default=24_000, help="tokens of each domain")
    parser.add_argument("--jobs", type=whole(1), default=2, help="trainings at once")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "hdee", help="where trainings are kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended("hdee", main))
