"""What Hugging Face's Trainer offers, each tried for two rounds of a run: every learning-rate scheduler and optimizer.

    python benchmarks/trainer_options.py            a table
    python benchmarks/trainer_options.py --json     the same for programs

Each line is a Trainer that really trains a tiny model, in this process; there is no node, the other end of the link is
here (kit/run_at_hand.py). After the run's end the model must hold the run's state to the bit, also after
`optimizer.eval()` where the optimizer has that; a scheduler that counts steps must show the rate of the run's step.

    works              two rounds were trained
    refused            before anything was founded, with the reason: members could not agree on what it does
    needs a package    that is not installed; transformers says which
    FAILS              half-way, and then so does this command
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from kit.run_at_hand import RunAtHand
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from shoal.node.client.script.hf import ShoalCallback
from shoal.node.client.script.hooks import counts_steps
from shoal.protocol.base.errors import ShoalError

STEPS, ROUNDS = 3, 2
GIVEN: dict[str, dict[str, float]] = {  # what schedulers cannot do without
    "cosine_with_min_lr": {"min_lr": 1e-4},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-4},
    "warmup_stable_decay": {"num_decay_steps": 2},
}
LACKS = ("install", "failed to import")  # as transformers says what an optimizer needs


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    option: str
    name: str
    outcome: str
    words: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome != "FAILS"


def schedulers() -> list[str]:
    return [each.value for each in SchedulerType]


def optimizers() -> list[str]:
    return [each.value for each in OptimizerNames]


def try_scheduler(name: str) -> Result:
    """Two rounds with AdamW and this scheduler."""
    is_by_metric = name in ("reduce_lr_on_plateau", "greedy")
    arguments = {"lr_scheduler_type": name, "lr_scheduler_kwargs": GIVEN.get(name, {}), "optim": "adamw_torch"}
    evaluations = {"eval_strategy": "steps", "eval_steps": 2} if is_by_metric else {}
    return _tried("scheduler", name, {**arguments, **evaluations})


def try_optimizer(name: str) -> Result:
    """Two rounds with this optimizer."""
    return _tried("optimizer", name, {"optim": name, "optim_target_modules": ["mlp"] if "galore" in name else None})


def _tried(option: str, name: str, more: dict[str, Any]) -> Result:
    tables = {"name": name[:30], "method": {"inner_steps": STEPS, "batch": 2}, "rounds": {"last": ROUNDS}}
    run = RunAtHand("", tables)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer = _trainer(run, folder, more)
            trainer.train()
        except Exception as error:
            return Result(option, name, *_judged(run, error))
    return Result(option, name, *_checked(run, trainer))


def _judged(run: RunAtHand, error: Exception) -> tuple[str, str]:
    words = " ".join(str(error).split())
    if run.loop is not None:
        return "FAILS", f"{type(error).__name__}: {words}"
    if isinstance(error, ShoalError):
        return "refused", words
    return ("needs a package" if any(each in words for each in LACKS) else "FAILS"), words


def _checked(run: RunAtHand, trainer: Any) -> tuple[str, str]:
    assert run.loop is not None
    optimizer = trainer.optimizer.optimizer
    if callable(getattr(optimizer, "eval", None)):
        optimizer.eval()
    held = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
    if not run.is_over or run.loop.rounds != ROUNDS:
        return "FAILS", f"{run.loop.rounds} rounds were trained"
    if not torch.equal(held, run.loop.theta):
        return "FAILS", "the model is not the run's result"
    if not counts_steps(trainer.lr_scheduler):
        return "works", "by each member's own evaluations, so each has rates of its own"
    if trainer.lr_scheduler.last_epoch != run.progress.step:
        return "FAILS", f"the rate is that of step {trainer.lr_scheduler.last_epoch}, not {run.progress.step}"
    return "works", ""


def _trainer(run: RunAtHand, folder: str, more: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    samples = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=100,  # the run ends before
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        warmup_steps=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=samples,
        eval_dataset=samples[:4],
        callbacks=[ShoalCallback(run)],
    )
    trainer.remove_callback(PrinterCallback)  # what it prints is no part of the table
    return trainer


def tried(names: str = "") -> Iterator[Result]:
    """All, or those whose name has `names` in it."""
    yield from (try_scheduler(each) for each in schedulers() if names in each)
    yield from (try_optimizer(each) for each in optimizers() if names in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names with this in them")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    is_right = True
    for each in tried(options.only):
        row = f"{each.option:10} {each.name:30} {each.outcome:16} {each.words[:120]}".rstrip()
        print(json.dumps(asdict(each)) if options.json else row, flush=True)
        is_right = is_right and each.is_right
    sys.exit(0 if is_right else "something is refused half-way")


if __name__ == "__main__":
    main()
