"""A Hugging Face `Trainer` as the worker of a run: one callback, and the rest of the script stays as it is.

    run = join(link) if link else create("words", rounds={"last": 100})
    Trainer(model, arguments, train_dataset=..., callbacks=[ShoalCallback(run)]).train()

It needs transformers (the extra `hf`). The Trainer's optimizer and its scheduler are wrapped when training
begins, and training ends with the run, if the Trainer's own end does not come before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.node.base import extra
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.client.script.api import Run
    from shoal.node.client.script.session import Validate

TrainerCallback: Any = extra.transformers().TrainerCallback


class ShoalCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a Trainer take part in `run` each time that it trains; in between the other members do not wait for it.

    The weight of a step is all samples of its accumulated batches. `validate` is that of `Run.wrap`.
    """

    def __init__(self, run: Run, validate: Validate | None = None) -> None:
        self.run, self.validate = run, validate

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Wait for the run's state, and load it into the Trainer's model."""
        if args.world_size > 1:
            raise LocalError(
                "a run has one process on each node, and this Trainer has several: let each be a node",
                code="script-misused",
            )
        batch = (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps
        self.run.wrap(given["optimizer"], given["model"], batch, self.validate)
        self.run.follow(given["lr_scheduler"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop training when the run has ended."""
        if self.run.is_over:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take no part until training begins again."""
        self.run.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any) -> None:
        """Report the loss, which `shoal status` shows."""
        if logs and "loss" in logs:
            self.run.report(float(logs["loss"]))
