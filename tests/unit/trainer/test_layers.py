"""Layers that are recomputed or compiled compute the same; what cannot be compiled is done as it is written."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.unit.trainer.trainer_kit import gradient, trainer, weights


def test_recomputed_activations_give_the_same_loss_and_gradient() -> None:
    kept, made = trainer(clip=1e6), trainer(recompute=True, clip=1e6)
    calls = []
    made.model.get_submodule("model.layers.1").register_forward_pre_hook(lambda *_: calls.append(1))
    losses = [each.train(1, [0], lambda _: False).loss for each in (kept, made)]
    assert losses[0] == losses[1]
    assert torch.equal(gradient(kept), gradient(made))
    assert len(calls) == 2  # forward, and once more for the backward pass


def test_less_is_kept_for_the_backward_pass() -> None:
    kept = {each: 0 for each in (False, True)}
    for recompute in kept:
        one = trainer(recompute=recompute)

        def count(tensor: torch.Tensor, recompute: bool = recompute) -> torch.Tensor:
            kept[recompute] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            one.model.loss(torch.zeros(4, 17, dtype=torch.long))
    assert kept[True] < 0.5 * kept[False]


def test_without_a_compiler_the_layers_run_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(function: object, dynamic: bool) -> object:
        def fail(*_: object) -> None:
            raise ModuleNotFoundError("InvalidCxxCompiler: No working C++ compiler found\nand much more")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    caplog.set_level(logging.INFO, "shoal.trainer")
    asked, plain = trainer(compiled=True), trainer()
    for each in (asked, plain):
        each.train(1, [0])
    assert caplog.messages[:2] == [
        "the layers cannot be compiled here and run as they are written: "
        "ModuleNotFoundError: InvalidCxxCompiler: No working C++ compiler found",
        "cpu trains on 8 sequences at once",
    ]
    assert torch.equal(weights(asked), weights(plain))


SCRIPT = """
    import logging
    logging.basicConfig(level=logging.INFO)
    import torch
    from torch._dynamo.utils import counters
    from tests.unit.trainer.trainer_kit import trainer
    torch.set_num_threads(1)
    plain, compiled = trainer(4, layers=10), trainer(4, compiled=True, layers=10)
    for _ in range(2):
        losses = [each.train(1, [0]).loss for each in (plain, compiled)]
    print(f"{losses[0]:.4f} {losses[1]:.4f} {counters['stats']['unique_graphs']}")
"""


def run_script(cache: Path, compiler: str | None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)} | ({"CXX": compiler} if compiler else {})
    argv = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[3])


@pytest.mark.slow
def test_all_layers_are_compiled_once_and_compute_the_same(tmp_path: Path) -> None:
    done = run_script(tmp_path, None)
    assert "layers compiled" in done.stderr, done.stderr
    plain, compiled, graphs = done.stdout.split()
    assert plain == compiled
    assert graphs == "1"  # of ten layers


@pytest.mark.slow
def test_a_missing_compiler_is_one_line_of_the_log(tmp_path: Path) -> None:
    done = run_script(tmp_path, "/nowhere/c++")
    plain, compiled, _ = done.stdout.split()
    assert plain == compiled, done.stderr
    assert done.stderr.count("the layers cannot be compiled here") == 1
    assert "layers compiled" not in done.stderr
