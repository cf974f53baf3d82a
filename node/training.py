"""A run's worker as the run sees it: a round is begun, and some time later a contribution comes out.

Rules:
- When the others wait, the worker is asked for what it has, but only after a first step: little is worth waiting for
  a moment, nothing is not.
- What was trained from a state that we have left is never submitted, even if the round has the same number again.
- Any program may be the worker, so what it hands in is looked at here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from shoal.node.logs import warn
from shoal.node.outer import parameters
from shoal.node.shm import FloatArray
from shoal.node.state import CommittedState
from shoal.node.worker_messages import Contribution, Progress
from shoal.node.worker_process import WorkerSettings
from shoal.node.workers import Worker

log = logging.getLogger("shoal.run")

Submit = Callable[[int, FloatArray | None], None]
"""Takes a weight in tokens and the pseudo-gradient behind it, None for weight 0."""


class Training:
    """Keeps a worker, and gives it one round after the other. `spawn` runs a coroutine beside us."""

    def __init__(
        self,
        settings: WorkerSettings,
        state: CommittedState,
        submit: Submit,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        moments: FloatArray | None = None,
    ) -> None:
        """`moments` are what the inner optimizer goes on with, from a checkpoint."""
        self.progress: Progress | None = None  # in the current round
        self.last_loss: float | None = None  # mean over the steps of the last contribution
        self.trouble = ""  # why the worker was lost, until the next one makes a step
        self._state = state
        self._submit = submit
        self._spawn = spawn
        self._begun = 0  # rounds, counted again when one is done again
        self._called_for = 0  # the round that the others wait for us to hand in
        self._worker = Worker(
            settings, on_progress=self._on_progress, on_contribution=self._on_contribution, on_lost=self._on_lost
        )
        if moments is not None:
            np.copyto(self._worker.moments, moments)

    def start(self) -> None:
        """Let the worker live; it waits for `begin`."""
        self._spawn(self._worker.run())

    async def stop(self) -> None:
        """End the worker."""
        await self._worker.stop()

    def begin(self, round: int, lane: int) -> None:
        """Train `round` on `lane`'s data, from the committed state; whatever was begun before is forgotten."""
        self._begun += 1
        self.progress = None
        self._worker.forget()
        self._spawn(self._train(round, lane))

    def call(self, round: int) -> None:
        """The others wait for our contribution to `round`."""
        self._called_for = round
        self._hand_in_if_called()

    @property
    def loss(self) -> float | None:
        """The latest that is known."""
        return self.progress.loss if self.progress is not None else self.last_loss

    @property
    def device(self) -> str | None:
        """What the worker trains on; None while it loads."""
        return self._worker.device

    @property
    def pid(self) -> int | None:
        """The worker's process; None while there is none."""
        return self._worker.pid

    async def moments(self) -> FloatArray | None:
        """A copy of the inner optimizer's state as of the last hand-in; None if there is none."""
        return None if self._worker.is_over else await asyncio.to_thread(self._worker.copied_moments)

    async def _train(self, round: int, lane: int) -> None:
        with self._state.lease() as snapshot:
            await self._worker.train(round, lane, parameters(snapshot))

    def _on_lost(self, reason: str) -> None:
        self.trouble = reason
        warn(log, "worker-lost", f"{reason}; it is started again")

    def _on_progress(self, progress: Progress) -> None:
        self.progress, self.trouble = progress, ""
        self._hand_in_if_called()

    def _hand_in_if_called(self) -> None:
        if self.progress is not None and self.progress.round == self._called_for:
            self._worker.hand_in(self._called_for)
            self._called_for = 0

    def _on_contribution(self, contribution: Contribution) -> None:
        self._spawn(self._contribute(contribution, self._begun))

    async def _contribute(self, contribution: Contribution, begun: int) -> None:
        vector, weight = self._worker.contribution, contribution.tokens
        if weight and not await asyncio.to_thread(_is_finite, vector):
            warn(log, "diverged", f"training diverged in round {contribution.round}; we contribute nothing to it")
            weight = 0
        if begun == self._begun:
            self.last_loss = contribution.loss
            self._submit(weight, vector if weight else None)
        await self._worker.unload()


def _is_finite(vector: FloatArray) -> bool:
    """Without a vector of answers: NaN and Inf win one of the two."""
    return bool(np.isfinite(vector.min()) and np.isfinite(vector.max()))
