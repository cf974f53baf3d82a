"""Optimizer steps on one device, with as large micro-batches as fit.

Rules:
- A batch is cut into micro-batches. Their gradients are added, each weighted by its share of the sequences.
- Whole batches are tried first, unless the node's owner has set a size. A step that does not fit is tried again with
  micro-batches of half the size; if a single sequence does not fit, with activations recomputed. This may happen at any
  time, as other programs may take memory.
- A step is only tried again if the weights are still unchanged. Once the optimizer has begun to change them, an error
  is raised.
- Layers that cannot be compiled run uncompiled.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
    """Frees cached device memory, after waiting for the operations that still use it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.synchronize()
        torch.mps.empty_cache()


log = logging.getLogger("shoal.trainer")


class Stepper:
    """Makes the steps of a model on `device`, with optimizers of its weights."""

    def __init__(
        self,
        model: TrainedModel,
        optimizers: tuple[torch.optim.Optimizer, ...],
        clip: float,
        device: torch.device,
        options: TrainerOptions,
    ) -> None:
        self.options = options  # reduced to what has fitted so far
        self.micro_batch = 0  # of the last step, in sequences
        self._model = model
        self._optimizers = optimizers
        self._clip = clip
        self._device = device
        self._is_changing = False  # whether the current step has begun to change the weights
        self._said = ""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Drops a recorded or unfinished step, after the optimizers' state was replaced or a step has failed."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self._model.arrange(self.options)
        self._run = self._runner()

    def step(self, tokens: Tensor) -> Tensor:
        """Makes one step on a batch (B, T + 1) on the CPU; returns its mean loss (), which the next step may overwrite.

        Raises LocalError if not even a single sequence fits.
        """
        return self._fitting(tokens, lambda: self._run(tokens))

    def gradient(self, tokens: Tensor) -> Tensor:
        """Computes the gradient of a batch into the weights' `grad`; the weights stay. Otherwise as `step`."""
        return self._fitting(tokens, lambda: self._measure(tokens.to(self._device)))

    def uncompiled(self) -> AbstractContextManager[object]:
        """A context in which layers run as they are written, for a pass that is too rare to be compiled for.

        It needs torch 2.6; before, such a pass compiles the layers once more.
        """
        stance: Callable[[str], AbstractContextManager[object]] | None = getattr(torch.compiler, "set_stance", None)
        return stance("force_eager") if self.options.compiled and stance is not None else nullcontext()

    def _fitting(self, tokens: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Calls `run`, and reduces the options until the batch fits; returns its loss."""
        while (loss := self._attempt(run, len(tokens))) is None:
            self.begin_anew()
            make_room(self._device)  # not in the except clause: there, the error's stack still holds the memory
        self.micro_batch = self.options.at_once(len(tokens))
        self._say(f"{device_name(self._device)} trains on {self.options.in_words(len(tokens))}")
        return loss

    def _attempt(self, run: Callable[[], Tensor], rows: int) -> Tensor | None:
        """The loss; None if the step failed and is to be tried again with the reduced options."""
        self._is_changing = False
        try:
            return run()
        except Exception as error:
            is_undone = isinstance(error, NotRecordedError) or not self._is_changing
            if not is_undone or not self._concede(error, rows):
                raise
            return None

    def _concede(self, error: Exception, rows: int) -> bool:
        """Reduces the options after `error`; returns False if that would not help."""
        if is_out_of_memory(error):
            less = self.options.smaller(rows)
            if less is None:
                name = device_name(self._device)
                raise LocalError(
                    f"one sequence does not fit in the memory of {name}, even with activations recomputed: leave the "
                    "run, or give the node more memory or another --device",
                    code="no-room",
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
        """The function that makes a step with tokens on the CPU: recorded if possible."""
        if self._device.type == "cuda" and self._model.can_be_recorded and can_be_recorded(self._optimizers):
            return RecordedStep(self._update, self._device)
        return lambda tokens: self._update(tokens.to(self._device))

    def _update(self, tokens: Tensor) -> Tensor:
        """The device's part of a step, in which nothing waits for the CPU; returns the loss."""
        loss = self._measure(tokens)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._is_changing = True
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def _measure(self, tokens: Tensor) -> Tensor:
        """Computes the mean loss of all `tokens`, and its gradient into the weights' `grad`; returns the loss."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        for part in torch.split(tokens, self.options.at_once(len(tokens))):
            share = len(part) / len(tokens)  # 1 for a whole batch, which changes no bit
            with mixed_precision(self._device):
                loss = share * self._model.loss(part)
            torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def _say(self, sentence: str) -> None:
        """Logs how steps are made, if that has changed."""
        if sentence != self._said:
            log.info(sentence)
            self._said = sentence
