"""All training methods on the built-in text, with eight virtual workers and equal tokens: the table of docs/methods.md.

    python benchmarks/convergence.py                      two processes, one thread each, within the hour
    python benchmarks/convergence.py --grid               choose settings: fewer steps, other seed, other held-out text
    python benchmarks/convergence.py --full               a larger model, on a GPU if there is one
    python benchmarks/convergence.py --only diloco noloco --seeds 1 --steps 400

Each method's loss lies between that of training alone with one worker's data and that of one process that takes all
workers' batches together; both are trained here, for the same steps at the same schedule. A training that is done is a
line in a file of the folder `--out`: what is stopped and started again goes on, and only what was under way is lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from kit.convergence_plot import draw
from kit.convergence_run import Job, Line, answers, append, missing, read, train
from kit.convergence_table import best, results, rows, settings
from kit.recipes import CHOSEN, GRIDS, points

from shoal.node.training.trainer.device import choose_device

ROOT = Path(__file__).parent.parent
STEPS, GRID_STEPS = 2000, 1000
GRID_SEED = 1000  # that no reported training has
FILES = ("convergence.jsonl", "convergence.svg")  # of docs/


def main() -> None:
    """Trains the requested jobs that have no line yet, then shows the table of all lines."""
    options = _parse()
    size = "full" if options.full else "tiny" if options.tiny else "small"
    steps = options.steps or (GRID_STEPS if options.grid else STEPS)
    wanted = jobs(options.only, options.seeds, steps, size, options.grid)
    path = options.out / ("grid.jsonl" if options.grid else FILES[0])
    train_all(missing(wanted, read(path))[: options.most], path, options.device, options.jobs)
    every = jobs(options.only if options.grid else list(CHOSEN), options.seeds, steps, size, options.grid)
    lines = [line for line in read(path) if any(answers(line, job) for job in every)]
    if options.grid:
        print(_choices(lines))
        return
    table = rows(lines)
    draw(lines, table, options.out / FILES[1])
    print(f"{results(table)}\n\n{settings()}")
    if options.publish:
        publish(lines, options.out)


def jobs(names: Sequence[str], seeds: int, steps: int, size: str, grid: bool) -> list[Job]:
    """The jobs of these methods: for the table one per seed, for the grid one per point."""
    if grid:
        return [
            Job(name, recipe, GRID_SEED, steps, size, choosing=True)
            for name in names
            for recipe in points(name, GRIDS[name])
        ]
    return [Job(name, CHOSEN[name], seed, steps, size) for seed in range(seeds) for name in names]


def train_all(wanted: Sequence[Job], path: Path, device: str, at_once: int) -> None:
    """Trains the jobs, so many at once; each line is appended to `path` when it is done."""
    for line in _trained(wanted, device, min(at_once, len(wanted))):
        append(path, line)
        print(_said(line), flush=True)


def _trained(wanted: Sequence[Job], device: str, at_once: int) -> Iterator[Line]:
    if at_once < 2:
        yield from (train(job, device) for job in wanted)
        return
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(train, job, device) for job in wanted]):
            yield done.result()


def publish(lines: Iterable[Line], out: Path) -> None:
    """Copies lines and plot into docs/."""
    docs = ROOT / "docs"
    (docs / FILES[0]).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shutil.copy(out / FILES[1], docs / FILES[1])


def _said(line: Line) -> str:
    loss = "failed" if line["loss"] is None else f"{line['loss']:.4f}"
    return f"{line['name']:17} seed {line['seed']}: {loss}, {_recipe(line)} ({line.get('seconds', 0):.0f} s)"


def _recipe(line: Line) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in line["recipe"].items())


def _choices(lines: Sequence[Line]) -> str:
    return "\n".join(f"{name:17} {line['loss']:.4f}  {_recipe(line)}" for name, line in best(lines).items())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CHOSEN), default=list(CHOSEN), metavar="METHOD")
    parser.add_argument("--seeds", type=_positive, default=3, help="how many, from 0")
    parser.add_argument("--steps", type=_positive, help=f"default: {STEPS}; of the grid {GRID_STEPS}")
    parser.add_argument("--grid", action="store_true", help="train all points of the grids, and say which are best")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", action="store_true", help="a larger model")
    sizes.add_argument("--tiny", action="store_true", help="a model that learns nothing: whether it runs")
    parser.add_argument("--device", help="default: cpu; with --full the fastest there is")
    parser.add_argument("--jobs", type=_positive, default=2, help="trainings at once")
    parser.add_argument("--most", type=_positive, help="trainings to make now; the rest another time")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "convergence", help="where the lines go")
    parser.add_argument("--publish", action="store_true", help="put lines and plot into docs/, too")
    options = parser.parse_args()
    options.device = choose_device(options.device or ("auto" if options.full else "cpu"))
    return options


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1")
    return int(text)


if __name__ == "__main__":
    main()
