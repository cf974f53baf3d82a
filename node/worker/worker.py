"""The built-in worker: a process that trains one run's model and owns nothing that must survive.

    python -m shoal.node.worker.worker --socket PATH

It carries out the orders of ipc/messages.py one at a time, and checks for new ones between two inner steps. The
parameters come from the daemon through shared memory, and the pseudo-gradient goes back together with a copy of the
optimizer's moments, for the next worker to begin with. When the socket closes there is nothing to save, so the process
ends at once, in the middle of a step if need be.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from shoal.node.base.logs import setup_logging
from shoal.node.base.refusals import refusal
from shoal.node.base.signals import die_with_parent, ignore_all_but_sigterm
from shoal.node.base.stacks import STACKS_FILE, stacks_on_request
from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Failed, Progress, Ready, Stop, Train, Welcome
from shoal.node.ipc.worker_end import failure_reason
from shoal.node.manifest.manifest import decode_manifest
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.methods.registry import method_of
from shoal.node.training.trainer.device import choose_device, device_bytes, device_name, peak_flops
from shoal.node.training.trainer.evaluate import SampleLoss
from shoal.node.training.trainer.inner import InnerRound, InnerStep, InnerTrainer
from shoal.node.training.trainer.stepper import make_room
from shoal.node.worker.stints import NOT_MEASURED, Orders, Stints, StorableModel
from shoal.node.worker.weights import WorkerWeights
from shoal.protocol.base.errors import ShoalError, TransportError

OOM_SCORE = 500  # counts as half of the machine's memory in addition to ours: proc(5)


class Trainer(StorableModel, Protocol):
    """The part of InnerTrainer that the loop uses."""

    def train(
        self, round: int, lanes: Sequence[int], keep_going: Callable[[InnerStep], bool], first: int, steps: int
    ) -> InnerRound: ...

    def gradient(self, round: int, lanes: Sequence[int], first: int, out: Tensor) -> InnerStep: ...

    def validate(self, sequences: int, go_on: Callable[[], bool]) -> SampleLoss: ...

    @property
    def micro_batch(self) -> int: ...

    def flops_utilization(self, tokens_per_second: float) -> float | None: ...


class TrainingLoop(Stints[Trainer]):
    """Carries out orders; `send` sends a message to the daemon."""

    _complaint = ""  # why the validation loss could not be measured

    def run(self) -> None:
        """Work until an order fails or the daemon is gone."""
        done = 0
        while True:
            order = self._orders.after(done)
            try:
                self.carry_out(order)
            except TransportError:
                return
            except Exception as error:
                print_error(error)
                self._send(Failed(order.order, order.round, *failure_reason(error)))
                return
            done = order.order

    def carry_out(self, order: Train) -> None:
        """Carry out one order: merge its landings, train, and answer."""
        if not self.begin(order):
            return  # a newer order has replaced it
        self.validate(order, self._measure)
        if order.steps and not self._orders.is_due(order):
            with self.utilisation.working(time.monotonic):
                self.add(self._train(order))
        self.end(order)

    def _measure(self, sequences: int, go_on: Callable[[], bool]) -> SampleLoss:
        """Measure the validation loss; an error, such as a lack of memory, costs the figure and not the training."""
        try:
            return self._trainer.validate(sequences, go_on)
        except Exception as error:
            complaint = f"{type(error).__name__}: {error}".partition("\n")[0]
        make_room(self._trainer.device)  # not in the except clause: there, the error's stack still holds the memory
        if complaint != self._complaint:
            print(f"worker: the validation loss cannot be measured: {complaint}", file=sys.stderr, flush=True)
            self._complaint = complaint
        return NOT_MEASURED

    def _train(self, order: Train) -> InnerRound:
        watch = self._watch(order)
        if not self._wants_gradients:
            return self._trainer.train(order.round, [order.lane], watch, order.first, order.steps)
        step = self._trainer.gradient(order.round, [order.lane], order.first, self._contribution)
        watch(step)
        return InnerRound(1, step.tokens, step.loss)

    def _watch(self, order: Train) -> Callable[[InnerStep], bool]:
        """A function to call after each inner step: it reports progress, and returns whether to go on."""
        start, before = time.monotonic(), self._done.tokens

        def keep_going(step: InnerStep) -> bool:
            if not math.isfinite(step.loss):
                raise ArithmeticError(f"the loss of inner step {step.step} is {step.loss}")
            now, trainer = time.monotonic(), self._trainer
            speed = step.tokens / max(now - start, 1e-9)
            self._send(
                Progress(
                    order.order,
                    order.round,
                    step.step,
                    step.loss,
                    before + step.tokens,
                    speed,
                    device_bytes(trainer.device),
                    self.utilisation.share(now),
                    trainer.micro_batch,
                    trainer.flops_utilization(speed),
                )
            )
            return not self._orders.is_due(order)

        return keep_going


def listen(link: WorkerLink, orders: Orders) -> NoReturn:
    """The reader thread: takes orders, and ends the process when the connection ends."""
    try:
        while not isinstance(message := link.receive(), Stop):
            orders.take(message)
    except TransportError:
        pass
    except ShoalError as error:
        print(f"the daemon broke the protocol: {error}", file=sys.stderr)
    os._exit(0)


def build_trainer(welcome: Welcome) -> InnerTrainer:
    """A trainer of the manifest's model on its data, on this node's device."""
    manifest = decode_manifest(welcome.manifest)
    corpus = load_corpus(manifest.data, [Path(os.fsdecode(path)) for path in welcome.data], manifest.model.vocab)
    device = choose_device(welcome.device)
    return InnerTrainer(manifest, corpus, device, welcome.trainer, peak_flops(torch.device(device)))


def prefer_oom_kill() -> None:
    """If memory runs out, have Linux kill us rather than the daemon, which can start another worker."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{OOM_SCORE}", encoding="ascii")


def main() -> None:
    """Connect and work."""
    die_with_parent()  # even if no thread of ours gets to run
    prefer_oom_kill()
    setup_logging()
    ignore_all_but_sigterm()
    parser = argparse.ArgumentParser(prog="shoal.node.worker.worker", description="The built-in worker of a daemon.")
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket of the run")
    stacks = os.environ.get(STACKS_FILE)
    try:
        with stacks_on_request(Path(stacks)) if stacks else nullcontext():
            work(WorkerLink.connect(parser.parse_args().socket))
    except ShoalError as error:
        sys.exit(f"worker: {error}")


def work(link: WorkerLink) -> None:
    """Build what the daemon's welcome says, and train by its orders."""
    orders = Orders()
    threading.Thread(target=listen, args=(link, orders), name="listen", daemon=True).start()
    try:
        loop = build_loop(link, orders)
    except Exception as error:
        print_error(error)
        link.send(Failed(0, 0, *failure_reason(error)))
        sys.exit(1)
    loop.run()


def build_loop(link: WorkerLink, orders: Orders) -> TrainingLoop:
    """Build the trainer and its loop, and tell the daemon that we are ready."""
    torch.set_num_threads(link.welcome.threads)
    trainer = build_trainer(link.welcome)
    vectors = link.vectors
    contribution, moments = vectors.contribution.array, vectors.moments.array
    trainer.restore(torch.from_numpy(moments))
    method = method_of(trainer.manifest, trainer.layout)
    weights = WorkerWeights.over(method, trainer, vectors)
    link.send(Ready(device_name(trainer.device)))
    wants_gradients = method.wants_gradients
    return TrainingLoop(trainer, weights, orders, contribution, moments, link.send, wants_gradients=wants_gradients)


def print_error(error: Exception) -> None:
    """Print an error to the log: a ShoalError, or a refusal of the system, as a line; a bug with its stack."""
    said = error if isinstance(error, ShoalError) else refusal(error)
    if said is not None:
        print(f"worker: {said}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    main()
