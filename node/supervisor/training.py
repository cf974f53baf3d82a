"""The training of a run, as the run sees it: it begins and commits rounds, and gets contributions in return.

Rules:
- The agenda decides what the worker does, and when.
- When the other members wait, the worker is asked to hand in what it has, but only after its first step: that is worth
  a short wait, and an empty contribution is not.
- A worker that is away (liveness.py), as one that still loads when we come into a run, holds nobody up: the node takes
  part without a contribution. If it comes back, its contribution to the open round still counts, unless a group was
  formed meanwhile.
- A contribution that was trained from an abandoned state is never submitted, even if its round has the same number.
- Now and then the worker measures the validation loss of the committed state before its steps (validation.py); once the
  other members wait, that is broken off.
- Any program may be the worker, so its contributions are checked here.
- After the run's last round nothing is trained, and no worker of ours runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set
from pathlib import Path
from typing import Any

import numpy as np

from shoal.node.base.logs import warn
from shoal.node.base.pools import ROUNDS
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.ipc.messages import Contribution, Finished, Landing, Progress, Train, Validated
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.worker_end import WorkerEnd
from shoal.node.supervisor.agenda import MOST_LANDINGS, Agenda, Stint
from shoal.node.supervisor.liveness import LOOK, Attendance
from shoal.node.supervisor.process import WorkerSettings
from shoal.node.supervisor.supervisor import WorkerSupervisor
from shoal.node.supervisor.validation import ValidationSchedule
from shoal.node.training.methods.method import has_own_weights
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.outer import HeldState, Outcome
from shoal.protocol.base.errors import LocalError

SHOWN_WITHIN = 60.0  # seconds: a new worker has to load first
NO_SCRIPT = "this run is trained by a script of yours, which is not there: start it (docs/scripts.md)"

log = logging.getLogger("shoal.run")

Submit = Callable[[int, int, FloatArray | None], None]
"""Gets a round, a weight in tokens, and the contribution (None with weight 0)."""


class Training:
    """Keeps a worker, and gives it one round after the other. `spawn` runs a coroutine in the background."""

    def __init__(
        self,
        settings: WorkerSettings,
        outer: HeldState,
        submit: Submit,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        take_part: Callable[[], int],
        moments: FloatArray | None = None,
        last: int | None = None,
        absent: Callable[[int], None] = lambda round: None,
        validated: Callable[[int, float, int], None] = lambda round, loss, sequences: None,
        late_from: int | None = None,
    ) -> None:
        """`take_part` gives the number of members that are training, with us; `absent` is called with a round for which
        no worker of this node trains; `validated` with a round, the validation loss of its state, and the number of
        held-out sequences on which it was measured.

        `moments` (from a checkpoint) are those with which the worker begins; `last` is the run's last round. Once
        that of `late_from` is over nobody waits until our worker is loaded; None: they do.
        """
        self.progress: Progress | None = None  # in the current round
        self.utilisation: float | None = None  # share of its time in which the worker trains
        self.last_loss: float | None = None  # mean over the steps of the last contribution
        self.trouble = "" if settings.program else NO_SCRIPT  # why no worker trains; until one makes a step
        self.lost = ""  # why our last worker ended; until another makes a step
        self.failure = ""  # why no other worker is started; until somebody fixes it
        self._outer = outer
        self._agenda = Agenda(outer.timetable, last, has_own_weights(outer.method) and bool(settings.program))
        self._shown = asyncio.Event()  # after the last round: the worker's weights are in the vector `contribution`
        self._lane = self._samples = 0
        self._outcomes: dict[int, Outcome] = {}  # of committed rounds that the worker may not have merged yet
        self._submit = submit
        self._take_part = take_part
        self._spawn = spawn
        self._begun = 0  # number of calls of `begin`
        self._retiring: asyncio.Task[None] | None = None  # the worker was not wanted any more
        self._called_for = 0  # the round for which an early hand-in was requested
        self._absent, self._attendance = absent, Attendance()
        self._validated = validated
        self._validation = ValidationSchedule() if settings.program else ValidationSchedule(1, 1)
        self._open = 0  # the open round
        self._awaited = 0  # the round for which the others wait for us, until we have contributed
        self._is_script, self._last, self._late_from = not settings.program, last, late_from
        self._worker = WorkerSupervisor(
            settings,
            on_progress=self._on_progress,
            on_contribution=self._on_contribution,
            on_trained=self._on_trained,
            on_lost=self._on_lost,
            on_sign=self._on_sign,
            on_validated=self._on_validated,
        )
        if moments is not None:
            np.copyto(self._worker.moments, moments)

    def start(self) -> None:
        """Start the worker, which waits for `begin`."""
        self._spawn(self._worker.run())

    async def rest(self) -> None:
        """End the worker, whose device is free then; its last contribution and its moments stay until `stop`."""
        await self._worker.rest()

    async def stop(self) -> None:
        """End the worker, and give up what it shares with us."""
        await self._worker.stop()

    def begin(self, base: int, lane: int, samples: int = 0) -> None:
        """Train from the state of round `base`, which came from elsewhere, and drop everything begun before."""
        self._begun += 1
        self._lane, self._samples = lane, samples
        self.progress = None  # also if the round has the same number: its steps are void
        self._outcomes.clear()
        self._shown.clear()
        self._worker.forget()
        self._start(self._agenda.begin(base))
        self._open_round(base + 1)
        self._finish_after(base)

    def note(self, round: int, outcome: Outcome) -> None:
        """A round was applied here, with this outcome."""
        oldest = max(self._agenda.landed, round - 2 * MOST_LANDINGS)  # an order names fewer rounds than that
        self._outcomes = {past: known for past, known in self._outcomes.items() if past > oldest} | {round: outcome}

    def committed(self, base: int, lane: int, samples: int = 0) -> None:
        """Round `base` is the newest one that is applied; `lane` is the data lane for the next.

        `samples` are the tokens behind the state.
        """
        self._lane, self._samples = lane, samples
        self._start(self._agenda.committed(base))
        self._open_round(base + 1)
        self._finish_after(base)

    def call(self, round: int) -> None:
        """The other members wait for our contribution to `round`."""
        self._called_for = round
        self._worker.hurry(round)
        self._hand_in_if_called()
        if round == self._open != self._awaited:
            self._awaited = round
            self._spawn(self._watch_attendance(round))

    @property
    def loss(self) -> float | None:
        """The latest loss that is known."""
        return self.progress.loss if self.progress is not None else self.last_loss

    @property
    def device(self) -> str | None:
        """The device of the worker; None while it loads."""
        return self._worker.device

    @property
    def pid(self) -> int | None:
        """The worker's process; None while there is none."""
        return self._worker.pid

    @property
    def scripts(self) -> Set[ProcessIdentity]:
        """The scripts of the user that have been the worker."""
        return self._worker.scripts

    @property
    def socket(self) -> Path | None:
        """The path of the socket for workers, once it listens."""
        return self._worker.socket

    async def moments(self) -> FloatArray | None:
        """A copy of the vector `moments` (ipc/vectors.py) as of the last hand-in; None if there is none."""
        return None if self._worker.is_over else await ROUNDS.run(self._worker.copied_moments)

    async def weights(self) -> FloatArray:
        """A copy of the worker's own weights (d,) after the last round; LocalError if it does not show them in time."""
        try:
            async with asyncio.timeout(SHOWN_WITHIN):
                await self._shown.wait()
        except TimeoutError:
            raise LocalError(
                f"the worker has not shown its weights within {SHOWN_WITHIN:.0f} s; see its log", code="worker-silent"
            ) from None
        if self._worker.is_over:
            raise LocalError("the worker has ended, and its weights with it", code="worker-silent")
        return await ROUNDS.run(self._worker.contribution.copy)

    def _start(self, stint: Stint | None) -> None:
        if stint is None:
            return
        if self.progress is not None and self.progress.round != stint.round:
            self.progress = None
        self._worker.forget()
        self._spawn(self._train(stint, self._lane))

    async def _train(self, stint: Stint, lane: int) -> None:
        if (retiring := self._retiring) is not None:  # the run was over, but has another branch, which is not
            await asyncio.wait([retiring])
            if self._retiring is retiring:
                self._retiring = None
                self._worker.wake()
            if stint is not self._agenda.running:
                return
        with self._outer.lease(max(stint.landings, default=None)) as snapshot:
            landings = tuple(self._landing(round, snapshot.round) for round in stint.landings)
            order = Train(
                order=0,  # numbered by the supervisor
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
                validates=self._to_validate(stint, snapshot.round),
            )
            await self._worker.train(order, self._agreed(snapshot), self._outer.answers.get(snapshot.round))

    def _to_validate(self, stint: Stint, round: int) -> int:
        """On how many sequences the worker is to measure the state of `round`, which it is given for this stint."""
        if not stint.steps or not (stint.landings or stint.is_fresh):
            return 0
        return self._validation.due(asyncio.get_running_loop().time(), round)

    def _open_round(self, round: int) -> None:
        self._open, self._awaited = round, 0
        if self._late_from is not None and round > self._late_from:
            self._attendance.comes_late()
        if self._attendance.is_away:
            self._absent(round)

    async def _watch_attendance(self, round: int) -> None:
        """While the others wait for `round`: once the worker is found away, report it, so that they need not."""
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
        """After the last round: tell a script; end a worker of ours, once it has shown its weights."""
        if self._last is None or base < self._last:
            return
        if self._is_script:
            self._spawn(self._finish())
        elif self._agenda.running is None:
            self._retire()

    def _retire(self, keeps_contribution: bool = False) -> None:
        self.progress, self.utilisation, self.trouble, self.lost, self.failure = None, None, "", "", ""
        self._retiring = self._spawn(self._worker.retire(keeps_contribution))

    async def _finish(self) -> None:
        with self._outer.lease() as snapshot:
            await self._worker.finish(Finished(snapshot.round, self._samples), self._agreed(snapshot))

    def _agreed(self, snapshot: Snapshot) -> list[FloatArray]:
        return [snapshot.array(name) for name in self._outer.method.reads]

    def _on_validated(self, round: int, validated: Validated) -> None:
        self._validation.measured(validated.seconds, validated.sequences)
        if validated.loss is not None:
            self._validated(round, validated.loss, validated.sequences)

    def _landing(self, round: int, version: int) -> Landing:
        outcome = self._outcomes.get(round)
        if outcome is None:  # the state with which we began contained it
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
            self.failure, self.lost = str(ended), ""
            self.trouble = f"{ended}. No other is started: mend that, then restart the node"
            log.error("%s", self.trouble, extra={"code": "worker-failed"})
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
    """Whether all numbers are finite, without a temporary vector: min or max of a vector with NaN or Inf is not."""
    return bool(np.isfinite(vector.min()) and np.isfinite(vector.max()))
