"""What a daemon and its worker say to each other, over a Unix socket of the run's folder.

    worker  Hello  ->            who I am; the daemon answers Welcome, with three shared vectors, or Unwelcome
    worker  Ready  ->            the model is built, on this device
    daemon  Train  ->  Progress* ->  Contribution
    daemon  HandIn ->  Contribution with the steps done so far
    daemon  Stop   ->  the worker ends; a closed socket means the same
    worker  Failed ->  this order cannot be carried out; the worker ends

Rules:
- `parameters` is the daemon's to write and the worker's to read, once, when Train arrives.
- `contribution` is the worker's from Train to Contribution, and the daemon's from then to the next Train.
- `moments` (moments.py) is the same, but what the daemon or an earlier worker left there is the worker's to begin with:
  it is written at each hand-in, is kept in checkpoints, and survives the worker. Whoever has no use for it leaves it.
- A new Train replaces the one before. Orders are numbered, so that an answer to an old one is recognised and
  ignored; so is a HandIn for an order that was already handed in.

Any program may be the worker: the built-in trainer knows nothing that is not said here.
"""

from __future__ import annotations

from shoal.node.trainer.options import TrainerOptions
from shoal.protocol.wire import Message, message

WORKER_PROTOCOL = 3
MAX_FRAME = 256 << 10  # a Welcome carries a manifest of at most 64 KiB


@message(200)
class Hello(Message):
    """The worker's first words."""

    protocol: int
    pid: int


@message(201)
class Welcome(Message):
    """The daemon's answer; the descriptors of `parameters`, `contribution` and `moments` ride on its first bytes."""

    manifest: bytes  # canonical
    elements: int  # of `parameters` and of `contribution`
    threads: int
    device: str  # "auto", "cpu", "cuda", "cuda:1", "mps"
    data: tuple[str, ...]  # local files and folders of this node
    trainer: TrainerOptions = TrainerOptions()


@message(202)
class Unwelcome(Message):
    """The daemon's other answer: no, and why."""

    reason: str


@message(203)
class Train(Message):
    """Load `parameters`, do the inner steps of `round` on `lane`'s data, and hand in."""

    order: int
    round: int
    lane: int


@message(204)
class HandIn(Message):
    """Contribute what `order` has now, even if that is nothing."""

    order: int


@message(205)
class Stop(Message):
    """The worker's work is over."""


@message(206)
class Progress(Message):
    """One inner step of `order` was done."""

    order: int
    round: int
    step: int  # in this round, from 1
    loss: float
    tokens: int  # trained on in this round
    tokens_per_second: float
    device_bytes: int  # of the device's own memory, held by the worker
    micro_batch: int = 0  # sequences that are worked on at once; 0: nobody knows
    model_flops_utilization: float | None = None  # the share of what the device could compute; None: nobody knows


@message(207)
class Contribution(Message):
    """The vector `contribution` holds the pseudo-gradient of `steps` inner steps on `tokens` tokens."""

    order: int
    round: int
    steps: int
    tokens: int  # 0: nothing was trained and the vector is zero
    loss: float | None  # mean over the steps


@message(208)
class Failed(Message):
    """The worker cannot carry out `order`, and ends."""

    order: int
    round: int
    reason: str


@message(209)
class Ready(Message):
    """The worker has built the model."""

    device: str  # for people: "cpu", "cuda:0 (NVIDIA H200)"
