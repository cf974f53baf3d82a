"""Hugging Face's Trainer that trains more than once in a run, in one process, as notebooks do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.node.client.script.api import Run, create
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode

transformers: Any = pytest.importorskip("transformers", reason="transformers IS NOT INSTALLED: see `make install`")
pytest.importorskip("accelerate", reason="accelerate IS NOT INSTALLED: see `make install`")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with Children(grace=0.0) as children:
        node = RealNode(tmp_path / "node").start(children)
        monkeypatch.setenv("SHOAL_HOME", str(node.home.root))
        rounds = {"min_members": 1, "start_members": 1, "pace": "steps", "last": 12}
        yield create("trainer", method={"inner_steps": 2, "batch": 2}, rounds=rounds)


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def trainer(run: Run, folder: Path, **more: Any) -> Any:
    from shoal.node.client.script.hf import ShoalCallback

    samples = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(32)]
    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True}
    options = {"logging_steps": 2, "save_strategy": "no", "disable_tqdm": True, "output_dir": str(folder)}
    arguments = transformers.TrainingArguments(**{**settings, **options, **more.pop("arguments", {})})
    callbacks = [ShoalCallback(run)]
    return transformers.Trainer(
        args=arguments, train_dataset=samples, eval_dataset=samples[:4], callbacks=callbacks, **more
    )


@pytest.mark.slow
def test_a_trainer_trains_evaluates_and_trains_again(run: Run, tmp_path: Path) -> None:
    ours = trainer(run, tmp_path, model=model())
    seen = []
    for _ in range(3):
        ours.train()
        seen.append(run.progress.step)
        assert "eval_loss" in ours.evaluate()
    assert seen == [4, 8, 12]
    assert not run.is_over
    anew = trainer(run, tmp_path, model_init=model, arguments={"max_steps": 100})  # another model, optimizer, schedule
    anew.train()
    assert run.is_over
    assert anew.state.global_step == 12, "it ends with the run"
    result = [weight.detach().clone() for weight in anew.model.parameters()]
    ours.train()
    assert all(map(torch.equal, ours.model.parameters(), result)), (
        "the run is over: its result is in any model that comes"
    )


@pytest.mark.slow
def test_a_trainer_that_is_broken_off_trains_again(run: Run, tmp_path: Path) -> None:
    """Ctrl-C in a notebook's cell, which is run again."""

    class Interrupt(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    ours, interrupt = trainer(run, tmp_path, model=model()), Interrupt()
    ours.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours.train()
    ours.remove_callback(interrupt)
    before = run.progress.step
    ours.train()
    assert run.progress.step > before


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_that_goes_by_evaluations_is_each_members_own(
    run: Run, tmp_path: Path, schedule: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "lr_scheduler_type": schedule}
    ours = trainer(run, tmp_path, model=model(), arguments=options)
    ours.train()
    assert run.progress.step == 4
    assert "goes by this machine's own metrics" in caplog.text
