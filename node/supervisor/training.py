"""A run's worker as the run sees it: rounds are begun and committed, and some time later contributions come out.

Rules:
- What it is to do, and when, its agenda says.
- When the others wait, the worker is asked for what it has, but only after a first step: little is worth waiting for
  a moment, nothing is not.
- A worker that is away (liveness.py) holds up nobody: the node takes part without a contribution. What a worker that
  is back hands in for the open round still counts, unless a group was formed meanwhile.
- What was trained from a state that we have left is never submitted, even if the round has the same number again.
- Any program may be the worker, so what it hands in is looked at here.
- After the run's last round nobody trains, and no worker of ours lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from shoal.node.base.logs import warn
from shoal.node.base.pools import ROUNDS
from shoal.node.ipc.messages import Contribution, Finished, Landing, Progress, Train
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.worker_end import WorkerEnd
from shoal.node.supervisor.agenda import MOST_LANDINGS, Agenda, Stint
from shoal.node.supervisor.liveness import LOOK, Attendance
from shoal.node.supervisor.process import WorkerSettings
from shoal.node.supervisor.supervisor import WorkerSupervisor
from shoal.node.training.methods.method import has_own_weights
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.outer import Outcome, OuterState, numbers
from shoal.protocol.base.errors import LocalError

SHOWN_WITHIN = 60.0  # seconds: a worker that is started anew loads for long
NO_SCRIPT = "this run is trained by a script of yours, which is not there: start it (docs/scripts.md)"

log = logging.getLogger("shoal.run")

Submit = Callable[[int, int, FloatArray | None], None]
"""Takes a round, a weight in tokens and the contribution behind it, None for weight 0."""


class Training:
    """Keeps a worker, and gives it one round after the other. `spawn` runs a coroutine beside us."""

    def __init__(
        self,
        settings: WorkerSettings,
        outer: OuterState,
        submit: Submit,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        take_part: Callable[[], int],
        moments: FloatArray | None = None,
        last: int | None = None,
        absent: Callable[[int], None] = lambda round: None,
    ) -> None:
        """`take_part` says how many members train just now, with us; `absent` is told that nobody trains for a round.

        `moments` are what the worker goes on with, from a checkpoint; `last` is the run's last round.
        """
        self.progress: Progress | None = None  # in the current round
        self.utilisation: float | None = None  # the share of its time in which the worker trains
        self.last_loss: float | None = None  # mean over the steps of the last contribution
        self.trouble = "" if settings.program else NO_SCRIPT  # why nobody trains, until a worker makes a step
        self.lost = ""  # why the last worker of ours has ended, until another makes a step
        self.failure = ""  # why nobody will, until somebody mends it
        self._outer = outer
        self._agenda = Agenda(outer.timetable, last, has_own_weights(outer.method) and bool(settings.program))
        self._shown = asyncio.Event()  # the worker's own weights, of after the last round, are in its contribution
        self._lane = self._samples = 0
        self._outcomes: dict[int, Outcome] = {}  # of committed rounds that the worker may not know yet
        self._submit = submit
        self._take_part = take_part
        self._spawn = spawn
        self._begun = 0  # how often we began anew
        self._called_for = 0  # the round that the others wait for us to hand in
        self._absent, self._attendance = absent, Attendance()
        self._open = 0  # the round that is open
        self._awaited = 0  # the round for which the others wait for us, until we are ready
        self._is_script, self._last = not settings.program, last
        self._worker = WorkerSupervisor(
            settings,
            on_progress=self._on_progress,
            on_contribution=self._on_contribution,
            on_trained=self._on_trained,
            on_lost=self._on_lost,
        )
        self._worker.on_sign = self._on_sign
        if moments is not None:
            np.copyto(self._worker.moments, moments)

    def start(self) -> None:
        """Let the worker live; it waits for `begin`."""
        self._spawn(self._worker.run())

    async def stop(self) -> None:
        """End the worker."""
        await self._worker.stop()

    def begin(self, base: int, lane: int, samples: int = 0) -> None:
        """Train from the state of round `base`, which came from elsewhere; whatever was begun before is forgotten."""
        self._begun += 1
        self._lane, self._samples = lane, samples
        self.progress = None  # of a round of the same number, too: its steps are of no use now
        self._outcomes.clear()
        self._shown.clear()
        self._worker.forget()
        self._start(self._agenda.begin(base))
        self._opens(base + 1)
        self._finish_after(base)

    def note(self, round: int, outcome: Outcome) -> None:
        """A round is applied here."""
        oldest = max(self._agenda.landed, round - 2 * MOST_LANDINGS)  # an order names a few rounds fewer than that
        self._outcomes = {past: known for past, known in self._outcomes.items() if past > oldest} | {round: outcome}

    def committed(self, base: int, lane: int, samples: int = 0) -> None:
        """Round `base` is the newest that is applied; `lane` is whose data we read in the next.

        `samples` are the tokens behind the state.
        """
        self._lane, self._samples = lane, samples
        self._start(self._agenda.committed(base))
        self._opens(base + 1)
        self._finish_after(base)

    def call(self, round: int) -> None:
        """The others wait for our contribution to `round`."""
        self._called_for = round
        self._hand_in_if_called()
        if round == self._open != self._awaited:
            self._awaited = round
            self._spawn(self._bear_with(round))

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

    @property
    def socket(self) -> Path | None:
        """Where a worker is listened for."""
        return self._worker.socket

    async def moments(self) -> FloatArray | None:
        """A copy of the inner optimizer's state as of the last hand-in; None if there is none."""
        return None if self._worker.is_over else await ROUNDS.run(self._worker.copied_moments)

    async def weights(self) -> FloatArray:
        """A copy of the worker's own weights (d,), as it would go on from the last round; LocalError without any."""
        try:
            async with asyncio.timeout(SHOWN_WITHIN):
                await self._shown.wait()
        except TimeoutError:
            raise LocalError(f"the worker has not shown its weights within {SHOWN_WITHIN:.0f} s; see its log") from None
        if self._worker.is_over:
            raise LocalError("the worker has ended, and its weights with it")
        return await ROUNDS.run(self._worker.contribution.copy)

    def _start(self, stint: Stint | None) -> None:
        if stint is None:
            return
        if self.progress is not None and self.progress.round != stint.round:
            self.progress = None
        self._worker.forget()
        self._spawn(self._train(stint, self._lane))

    async def _train(self, stint: Stint, lane: int) -> None:
        with self._outer.lease(max(stint.landings, default=None)) as snapshot:
            landings = tuple(self._landing(round, snapshot.round) for round in stint.landings)
            order = Train(
                order=0,  # the worker counts
                round=stint.round,
                lane=lane,
                version=snapshot.round,
                first=stint.first,
                steps=stint.steps,
                hand_in=stint.hand_in,
                is_fresh=stint.is_fresh,
                landings=landings,
                samples=self._samples,
                shows=stint.shows,
            )
            await self._worker.train(order, self._agreed(snapshot), self._outer.answers.get(snapshot.round))

    def _opens(self, round: int) -> None:
        self._open, self._awaited = round, 0
        if self._attendance.is_away:
            self._absent(round)

    async def _bear_with(self, round: int) -> None:
        """The others wait: once the worker turns out to be away they need not."""
        now = asyncio.get_running_loop().time
        called_at = now()
        while self._awaited == round and not self._attendance.is_away:
            is_there = self._worker.pid is not None
            if self._attendance.look(now(), called_at, is_there, self._worker.usual_step):
                silence = f"the worker has made no step for {self._attendance.silence(now(), called_at):.0f} s"
                self.trouble = self.trouble or (silence if is_there else "the worker is not running yet")
                self._absent(round)
            await asyncio.sleep(LOOK)

    def _on_sign(self) -> None:
        self._attendance.heard(asyncio.get_running_loop().time())

    def _finish_after(self, base: int) -> None:
        """Once the last round is over a script is told; a worker of ours ends, after it has shown its weights."""
        if self._last is None or base < self._last:
            return
        if self._is_script:
            self._spawn(self._finish())
        elif self._agenda.running is None:
            self._retire()

    def _retire(self, keeps_contribution: bool = False) -> None:
        self.progress, self.utilisation, self.trouble, self.lost, self.failure = None, None, "", "", ""
        self._spawn(self._worker.retire(keeps_contribution))

    async def _finish(self) -> None:
        with self._outer.lease() as snapshot:
            await self._worker.finish(Finished(snapshot.round, self._samples), self._agreed(snapshot))

    def _agreed(self, snapshot: Snapshot) -> list[FloatArray]:
        return [numbers(snapshot, name) for name in self._outer.method.reads]

    def _landing(self, round: int, version: int) -> Landing:
        outcome = self._outcomes.get(round)
        if outcome is None:  # it was in the state that we began with
            return Landing(round, False, False, self._take_part(), ())
        return Landing(round, True, round == version, outcome.members, outcome.missed)

    def _on_trained(self) -> None:
        if self._agenda.running is not None and self._agenda.running.shows:
            self._shown.set()
            self._retire(keeps_contribution=True)
        self._start(self._agenda.done())

    def _on_lost(self, ended: WorkerEnd) -> None:
        self._attendance.lost(for_good=self._is_script or ended.is_final)
        if self._is_script:
            self.trouble = f"{ended}: run it again, and it goes on"
            log.info("%s", self.trouble)
        elif ended.is_final:
            self.trouble = self.failure = f"{ended}. No other is started: mend that, then restart the node"
            self.lost = ""
            log.error("%s", self.failure, extra={"code": "worker-failed"})
        else:
            self.trouble = self.lost = f"{ended}; it is started again"
            warn(log, "worker-lost", self.trouble)
        if self._attendance.is_away:
            self._absent(self._open)

    def _on_progress(self, progress: Progress) -> None:
        self.progress, self.trouble, self.lost, self.utilisation = progress, "", "", progress.utilisation
        self._hand_in_if_called()

    def _hand_in_if_called(self) -> None:
        if self.progress is not None and self.progress.round == self._called_for:
            self._worker.hand_in(self._called_for)
            self._called_for = 0

    def _on_contribution(self, contribution: Contribution) -> None:
        self._spawn(self._contribute(contribution, self._begun))
        self._start(self._agenda.done())

    async def _contribute(self, contribution: Contribution, begun: int) -> None:
        vector, weight = self._worker.contribution, contribution.tokens
        if weight and not await ROUNDS.run(_is_finite, vector):
            warn(log, "diverged", f"training diverged in round {contribution.round}; we contribute nothing to it")
            weight = 0
        if begun == self._begun:
            self._awaited = 0 if contribution.round == self._awaited else self._awaited
            self.last_loss = contribution.loss
            self._submit(contribution.round, weight, vector if weight else None)
        await self._worker.unload()


def _is_finite(vector: FloatArray) -> bool:
    """Without a vector of answers: NaN and Inf win one of the two."""
    return bool(np.isfinite(vector.min()) and np.isfinite(vector.max()))
