"""One optimizer step on one device, in as large pieces as fit.

Rules:
- A batch is cut into micro-batches, whose gradients are added, each weighted by its share of the sequences.
- Whole batches are tried first, unless the owner has said otherwise. What does not fit is tried again with
  micro-batches of half the size; where a single sequence does not fit, with activations recomputed. This holds at any
  time: memory that was enough yesterday may be somebody else's today.
- A step is only ever tried again from the weights that it began with: once the optimizer has begun to change them, an
  error is one.
- What cannot be compiled is done as it is written.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from shoal.node.base.logs import warn
from shoal.node.base.room import is_out_of_memory
from shoal.node.base.step_options import TrainerOptions
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.trainer.device import device_name, mixed_precision
from shoal.node.training.trainer.optimizers import can_be_recorded
from shoal.node.training.trainer.recorded_step import NotRecordedError, RecordedStep
from shoal.protocol.base.errors import LocalError


def make_room(device: torch.device) -> None:
    """Give back what nothing refers to any more; first whatever is still at work with it is waited for."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.synchronize()
        torch.mps.empty_cache()


log = logging.getLogger("shoal.trainer")


class Stepper:
    """Makes the steps of a model that lies on `device`, with optimizers that have its weights."""

    def __init__(
        self,
        model: TrainedModel,
        optimizers: tuple[torch.optim.Optimizer, ...],
        clip: float,
        device: torch.device,
        options: TrainerOptions,
    ) -> None:
        self.options = options  # as they have proved possible so far
        self.micro_batch = 0  # of the last step, in sequences
        self._model = model
        self._optimizers = optimizers
        self._clip = clip
        self._device = device
        self._is_changing = False  # the weights, in the step that is being made
        self._said = ""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was recorded or begun: the optimizers' state was replaced, or a step has failed."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self._model.arrange(self.options)
        self._run = self._runner()

    def step(self, tokens: Tensor) -> Tensor:
        """One step on a batch, (B, T + 1), of the CPU's; its mean loss, (), which the next step may overwrite.

        LocalError if a single sequence is too much for the device.
        """
        return self._fitting(tokens, lambda: self._run(tokens))

    def gradient(self, tokens: Tensor) -> Tensor:
        """Leave the gradient of a batch at the weights, which stay as they are; as `step` otherwise."""
        return self._fitting(tokens, lambda: self._measure(tokens.to(self._device)))

    def _fitting(self, tokens: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """What `run` returns, with options with which the batch fits."""
        while (loss := self._attempt(run, len(tokens))) is None:
            self.begin_anew()
            make_room(self._device)  # not where the error was caught: its stack holds what is to be given back
        self.micro_batch = self.options.at_once(len(tokens))
        self._say(f"{device_name(self._device)} trains on {self.options.in_words(len(tokens))}")
        return loss

    def _attempt(self, run: Callable[[], Tensor], rows: int) -> Tensor | None:
        """The loss, or None if another attempt may do, with other options."""
        self._is_changing = False
        try:
            return run()
        except Exception as error:
            is_undone = isinstance(error, NotRecordedError) or not self._is_changing
            if not is_undone or not self._concede(error, rows):
                raise
            return None

    def _concede(self, error: Exception, rows: int) -> bool:
        """Ask for less, after `error`; False if that would not help."""
        if is_out_of_memory(error):
            less = self.options.smaller(rows)
            if less is None:
                name = device_name(self._device)
                raise LocalError(
                    f"one sequence does not fit in the memory of {name}, even with activations recomputed: leave the "
                    "run, or give the node more memory or another --device"
                ) from error
            self.options = less
            return True
        if not self.options.compiled:
            return False
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        warn(log, "not-compiled", f"the layers cannot be compiled here and run as they are written: {reason}")
        self.options = replace(self.options, compiled=False)
        return True

    def _runner(self) -> Callable[[Tensor], Tensor]:
        """What makes a step with tokens from the CPU."""
        if self._device.type == "cuda" and self._model.can_be_recorded and can_be_recorded(self._optimizers):
            return RecordedStep(self._update, self._device)
        return lambda tokens: self._update(tokens.to(self._device))

    def _update(self, tokens: Tensor) -> Tensor:
        """The device's part of a step: nothing in it waits for the CPU. The loss."""
        loss = self._measure(tokens)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._is_changing = True
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def _measure(self, tokens: Tensor) -> Tensor:
        """Leave the gradient of the mean loss of all `tokens` at the weights; that loss."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        for part in torch.split(tokens, self.options.at_once(len(tokens))):
            share = len(part) / len(tokens)  # 1 for a whole batch: no bit changes
            with mixed_precision(self._device):
                loss = share * self._model.loss(part)
            torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def _say(self, sentence: str) -> None:
        """Log how steps are made, when that has changed."""
        if sentence != self._said:
            log.info(sentence)
            self._said = sentence
