"""Isolated experts on pictures against one network of equal training compute: `make diffusion`.

    python benchmarks/diffusion.py --out runs/diffusion

1. Four real peers train the family of examples/digits_experts.toml: eight experts on clusters of the digits,
   and a router. One peer is killed in the middle of a part, and another goes on with it.
2. Networks of one, two and eight times an expert's size are trained on all digits for as much compute, and eight
   experts and a router on random parts, as they should be worse.
3. All sample as many digits as are held out, of their classes, for several seeds. A classifier of real digits judges.

The report folder gets report.md, report.json and grids.png. The exit status is 0 if all was trained, the dead peer's
part was taken over and the experts' samples can be recognised; whoever wins.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from kit.ending import ended, processes, whole
from kit.experts_recipe import read_family, text_of
from kit.picture_arms import Job, alone, monolith, parts, together, train
from kit.picture_peers import train_family
from kit.picture_table import Line, PictureEvaluation, markdown, save_grids
from torch import Tensor

from shoal.node.client.up.plan import prepare_folder
from shoal.node.diffusion.mixture import Mixture
from shoal.node.experts.files import read_parameters
from shoal.node.experts.founding import write_partition
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.manifest import Manifest
from shoal.protocol.base.errors import LocalError

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits_experts.toml"
TOPS = {"full": None, "top-2": 2, "top-1": 1}
SIZES = (1, 2, 8)  # of networks on all pictures, in experts: as large as what top-1, top-2 and full ask
RECOGNISED = 0.85  # of the experts' samples, at least, or something is wrong


def main() -> int:
    """Train, compare, report."""
    options = _parse()
    family = read_family(EXAMPLE, options.steps, options.seed)
    if not options.no_peers:
        _check_death(family, options)
    out, _ = prepare_folder(options.out)
    began = time.monotonic()

    def say(sentence: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {sentence}", flush=True)

    trained = None if options.no_peers else train_family(text_of(family), options.peers, out, say)
    say("training what the experts are compared with")
    ways = _ways(family, trained is not None, out, options.jobs)
    say("painting")
    torch.set_num_threads(1)  # of small products more threads make nothing faster
    gallery = PictureEvaluation(range(options.seeds))
    lines = [gallery.floor(), *(gallery.line(name, way) for name, way in ways.items())]
    _draw(gallery, ways, out)
    facts = {"seed": options.seed, "steps": options.steps, "sampling_seeds": options.seeds}
    facts["judge_accuracy"] = gallery.judged
    facts |= {"seconds": time.monotonic() - began, "training": asdict(trained) if trained else None}
    _write(out, lines, facts)
    say(f"wrote {out}/report.md, report.json and grids.png")
    return _verdict(lines)


def _check_death(family: Manifest, options: argparse.Namespace) -> None:
    """LocalError unless a peer can die in the middle of a part, with a file of it that another has."""
    least = experts_of(family).publish_every * family.method.inner_steps
    if options.steps <= 2 * least:
        raise LocalError(
            f"--steps {options.steps} are too few for a peer to die between two files, which come every {least} steps: "
            f"name {2 * least + family.method.inner_steps} or more, or --no-peers"
        )


def _ways(family: Manifest, is_published: bool, out: Path, at_once: int) -> dict[str, Mixture]:
    """All ways to paint, by name, trained in so many processes; the experts' files are there, if they are published."""
    large, chance = [monolith(family, times) for times in SIZES], parts(_by_chance(family), None)
    own = parts(family, None) if is_published else parts(*_partitioned(family, out / "partition.safetensors"))
    with processes(at_once) as pool:
        jobs = [*reversed(large), *chance, *([] if is_published else own)]  # the longest first
        weights = list(pool.map(train, jobs))
    published = [_file(job, out) for job in own] if is_published else weights[len(large) + len(chance) :]
    ways = {_name(job): alone(job, each) for job, each in zip(large, reversed(weights[: len(large)]), strict=True)}
    for name, top in TOPS.items():
        ways[f"experts, {name}"] = together(own, published, top)
    for name, top in TOPS.items():
        ways[f"random parts, {name}"] = together(chance, weights[len(large) : len(large) + len(chance)], top)
    return ways


def _name(job: Job) -> str:
    rounds = job.manifest.rounds.last
    assert rounds is not None
    return f"{job.name}, {rounds * job.manifest.method.inner_steps:,} steps"


def _by_chance(family: Manifest) -> Manifest:
    """The same family with parts that are drawn."""
    experts = experts_of(family)
    assert experts.clusters is not None
    clusters = experts.clusters.model_copy(update={"by": "random"})
    return family.model_copy(update={"experts": experts.model_copy(update={"clusters": clusters})})


def _partitioned(family: Manifest, file: Path) -> tuple[Manifest, Path]:
    write_partition(family, [], file)
    experts = experts_of(family).with_file(blake3(file.read_bytes()).hexdigest())
    return family.model_copy(update={"experts": experts}), file


def _file(job: Job, out: Path) -> Tensor:
    return read_parameters(out / "experts" / f"{job.name}.safetensors", job.manifest.model)


def _draw(gallery: PictureEvaluation, ways: dict[str, Mixture], out: Path) -> None:
    grids = {name: gallery.grid(way) for name, way in ways.items() if not name.startswith("random")}
    some = {"held-out real": gallery.real_grid()} | grids
    some["random parts, full"] = gallery.grid(ways["random parts, full"])
    some["each expert alone"] = gallery.own(ways["experts, full"])
    save_grids(some, out / "grids.png")


def _write(out: Path, lines: Sequence[Line], facts: dict[str, Any]) -> None:
    table = markdown(lines)
    print(f"\n{table}\n")
    words = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    pictures = "![Ten samples of each class](grids.png)"
    (out / "report.md").write_text(f"# Experts on pictures\n\n{words}\n\n{table}\n\n{pictures}\n", encoding="utf-8")
    rows = [{"name": line.name, "asked": line.asked, "loss": line.loss, "figures": line.figures()} for line in lines]
    (out / "report.json").write_text(json.dumps(facts | {"lines": rows}, indent=1), encoding="utf-8")


def _verdict(lines: Sequence[Line]) -> int:
    best = max(line.figures()["accuracy"][0] for line in lines if line.name.startswith("experts"))
    if best >= RECOGNISED:
        return 0
    print(f"diffusion: only {best:.0%} of what the experts paint is taken for what was asked for", file=sys.stderr)
    return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder that is new or empty; default: one in runs/")
    parser.add_argument("--steps", type=whole(1), default=600, help="of each expert, whole rounds of 50")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the parameters and the training")
    parser.add_argument("--peers", type=whole(2), default=4, help="that train, one of which is killed")
    parser.add_argument("--seeds", type=whole(1), default=5, help="of the noise, by which all are judged")
    parser.add_argument(
        "--jobs", type=whole(1), default=2, help="processes that train what the experts are compared with"
    )
    parser.add_argument("--no-peers", action="store_true", help="train the experts in these, too, and kill nobody")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended("diffusion", main))
