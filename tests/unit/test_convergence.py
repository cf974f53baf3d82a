"""benchmarks/convergence.py: what it trains and what it reuses, its table, its options; nothing is trained here."""

from __future__ import annotations

import json
from pathlib import Path

import convergence
import pytest
from kit.convergence_plot import curve, draw
from kit.convergence_run import Job, Line, append, missing, read
from kit.convergence_table import best, results, rows
from kit.recipes import CHOSEN, GRIDS, SIZES, WORKERS, manifest, points, training

from shoal.node.lab.registry import METHODS, parse


def line(name: str, seed: int, loss: float | None, **more: object) -> Line:
    job = Job(name, CHOSEN[name], seed, 10)
    came = {
        "tokens": 2000,
        "replicas": [loss, loss],
        "contributed": 4.0,
        "answered": 6.0,
        "sent": 10.0,
        "greatest": 2.0,
    }
    return {**job.asked(), "loss": loss, **came, "curve": [(5, 3.0), (10, loss)], **more}


LINES = [
    *(line("alone", seed, 2.0 + seed) for seed in range(2)),
    *(line("joined", seed, 1.0 + seed) for seed in range(2)),
    line("diloco", 0, 1.2),
    line("diloco", 1, 2.4),
    line("noloco", 0, 1.25, replicas=[1.3, 1.5], greatest=1.0),
    line("co2", 0, None),
]


def test_a_gap_is_that_of_the_same_seed() -> None:
    table = {row.name: row for row in rows(LINES)}
    assert list(table) == ["alone", "joined", "diloco", "noloco"]
    diloco, noloco = table["diloco"], table["noloco"]
    assert diloco.gap is not None
    assert (diloco.gap.mean, diloco.gap.low, diloco.gap.high) == pytest.approx((0.7, 0.6, 0.8))
    assert diloco.seeds == 2
    assert (diloco.loss.mean, diloco.apart) == pytest.approx((1.8, 0))
    assert (noloco.replica, noloco.apart) == pytest.approx((1.4, 0.2))
    assert (diloco.contributed, diloco.answered, diloco.sent) == (2.0, 3.0, 5.0)  # a thousand tokens
    assert [row.gap for row in rows([line("diloco", 0, 1.2)])] == [None]


def test_the_table_says_it_in_one_line_each() -> None:
    head, _, alone, _, diloco, noloco = results(rows(LINES)).splitlines()
    assert head.count("|") == alone.count("|") == diloco.count("|")
    assert alone == "| *alone* | 2.5000 ± 0.5000 |  |  |  |  |  |  |"
    assert diloco == "| `diloco` | 1.8000 ± 0.6000 | 0.700 (0.600 to 0.800) |  | 2 | 3 | 5 | 1.00 |"
    assert "| 1.400, 0.200 apart |" in noloco
    assert noloco.endswith("| 0.50 |")


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines.jsonl"
    jobs = [Job("diloco", CHOSEN["diloco"], seed, 10) for seed in range(3)]
    assert missing(jobs, read(path)) == jobs
    append(path, line("diloco", 1, 2.0))
    append(path, line("diloco", 0, None))  # it failed, and would again
    assert missing(jobs, read(path)) == jobs[2:]
    others = [Job("diloco", {"inner_lr": 1.0}, 0, 10), Job("diloco", CHOSEN["diloco"], 0, 11)]
    others.append(Job("diloco", CHOSEN["diloco"], 0, 10, choosing=True))
    assert missing(others, read(path)) == others


def test_a_line_that_was_cut_off_does_not_count_and_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append(path, line("diloco", 0, 2.0))
    with path.open("a") as file:
        file.write(json.dumps(line("diloco", 1, 2.0))[:50])
    assert [each["seed"] for each in read(path)] == [0]
    append(path, line("diloco", 2, 2.0))
    assert [each["seed"] for each in read(path)] == [0, 2]


def test_the_best_of_a_grid_is_the_lowest_and_none_that_failed() -> None:
    found = best([line("co2", 0, None), line("co2", 1, 1.5), line("co2", 2, 1.4), line("ddp", 0, None)])
    assert (found["co2"]["seed"], found["ddp"]["loss"]) == (2, None)


@pytest.mark.parametrize("name", CHOSEN)
def test_what_was_chosen_is_a_point_of_its_grid_and_can_be_trained(name: str) -> None:
    tried = points(name, GRIDS[name])
    assert CHOSEN[name] in tried
    assert len(tried) == len({json.dumps(each) for each in tried})
    made = training(name, CHOSEN[name], 10)
    parse(made.method, made.settings)
    assert made.workers * made.lanes == (1 if name == "alone" else WORKERS)
    assert manifest(SIZES["small"], CHOSEN[name], 3, 2000).method.inner_lr == CHOSEN[name]["inner_lr"]


def test_a_stop_loses_only_what_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Job] = []

    def train(job: Job, device: str) -> Line:
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(job)
        return line(job.name, job.seed, 2.0)

    monkeypatch.setattr(convergence, "train", train)
    path = tmp_path / "lines.jsonl"
    wanted = convergence.jobs(["diloco", "noloco"], 1, 10, "small", grid=False)
    with pytest.raises(KeyboardInterrupt):
        convergence.train_all(wanted, path, "cpu", 1)
    assert missing(wanted, read(path)) == wanted[1:]


def test_every_method_is_compared() -> None:
    assert [name for name in CHOSEN if name not in ("alone", "joined")] == list(METHODS)


def test_curves_are_means_over_seeds_and_the_picture_is_the_same_each_time(tmp_path: Path) -> None:
    assert curve(LINES[:2]) == [(5, 3.0), (10, 2.5)]
    assert curve([line("co2", 0, None)]) == [(5, 3.0)]
    first, second = tmp_path / "1.svg", tmp_path / "2.svg"
    for path in (first, second):
        draw(LINES, rows(LINES), path)
    assert first.read_bytes() == second.read_bytes()
    assert b"joined" in first.read_bytes()
