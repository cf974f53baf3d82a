"""What a daemon and its worker say to each other, over a Unix socket of the run's folder.

    worker  Hello  ->            who I am; the daemon answers Welcome, with the shared vectors, or Unwelcome
    worker  Ready  ->            the model is built, on this device
    daemon  Train  ->  Progress* ->  Contribution, or Trained if none was asked for
    daemon  HandIn ->  the same, with the steps done so far
    daemon  Stop   ->  the worker ends; a closed socket means the same
    daemon  Finished ->  the run's last round is committed; `agreed` is what came of it (to a script, see below)
    worker  Failed ->  this order, or in round 0 any, cannot be carried out; the worker ends

Rules:
- `agreed` and `answer` (vectors.py) are the daemon's to write and the worker's to read, when Train arrives. What
  was read is good if `loaded` names the order after that; else the daemon has begun to write for the next one.
- `contribution` is the worker's from a Train that asks for one, or to be shown the weights, to its answer, then the
  daemon's until the next such.
- `moments` (vectors.py) is the same, but what the daemon or an earlier worker left there is the worker's to begin with:
  it is written at each hand-in, is kept in checkpoints, and survives the worker. Whoever has no use for it leaves it.
- What a worker trains on is its own, and goes on from order to order: `landings` say what to make of the rounds that
  were committed meanwhile. A worker that has no weights yet, or is told to begin afresh, takes those of `agreed`.
- A new Train replaces the one before. Orders are numbered, so that an answer to an old one is recognised and
  ignored; so is a HandIn for an order that was already handed in.

Any program may be the worker: the built-in trainer knows nothing that is not said here. A run of somebody's own model
(manifest/custom.py) has a script of the user's as its worker (script/), which comes and goes as it likes: it is neither
started nor ended by the daemon, and the end of the socket is not its end.
"""

from __future__ import annotations

from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes
from shoal.protocol.base.wire import Message, message, value

WORKER_PROTOCOL = 7
MAX_FRAME = 256 << 10  # a Welcome carries a manifest of at most 64 KiB


@message(200)
class Hello(Message):
    """The worker's first words."""

    protocol: int
    pid: int


@message(201)
class Welcome(Message):
    """The daemon's answer; the descriptors of the shared vectors ride on its first bytes."""

    manifest: bytes  # canonical
    sizes: Sizes
    threads: int
    device: str  # "auto", "cpu", "cuda", "cuda:1", "mps"
    data: tuple[bytes, ...]  # paths of local files and folders, which need not be UTF-8
    trainer: TrainerOptions = TrainerOptions()


@message(202)
class Unwelcome(Message):
    """The daemon's other answer: no, and why."""

    reason: str


@value
class Range:
    """Half-open, of the numbers of a round's part."""

    start: int
    stop: int


@value
class Landing:
    """A committed round whose answer is due."""

    round: int
    is_there: bool  # its mean is new to the worker, and not in the weights that it began with
    is_shown: bool  # `agreed`, and `answer`, are as it has left them
    members: int  # whose contributions made it
    missed: tuple[Range, ...]  # what of the worker's own contribution is not in it


@message(203)
class Train(Message):
    """Take what has landed, make so many inner steps of `round` on `lane`'s data, and hand in, or not yet."""

    order: int
    round: int
    lane: int
    version: int  # the round that made `agreed`
    first: int = 0  # steps of the round that came before these
    steps: int = 1
    hand_in: bool = True
    is_fresh: bool = False  # begin with the weights of `agreed`
    landings: tuple[Landing, ...] = ()  # those that the worker knows already are to be passed over
    samples: int = 0  # tokens behind the state of the newest round, of all members
    shows: bool = False  # leave the weights that came of it in `contribution`; nothing is handed in then


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
    loss: float | None  # None: the worker was not told
    tokens: int  # trained on in this round
    tokens_per_second: float
    device_bytes: int  # of the device's own memory, held by the worker
    utilisation: float  # share of the last rounds' time in which steps were made
    micro_batch: int = 0  # sequences that are worked on at once; 0: nobody knows
    model_flops_utilization: float | None = None  # the share of what the device could compute; None: nobody knows


@message(207)
class Contribution(Message):
    """The vector `contribution` holds what came of `steps` inner steps of the round on `tokens` tokens."""

    order: int
    round: int
    steps: int
    tokens: int  # 0: nothing was trained and the vector says nothing
    loss: float | None  # mean over the steps


@message(208)
class Failed(Message):
    """The worker cannot carry out `order`, or, before it is ready, any (0); it ends."""

    order: int
    round: int
    reason: str
    is_final: bool = False  # another worker could do no better (worker_end.py)
    is_mistake: bool = False  # of a program: from the same start another worker would make it as well


@message(209)
class Ready(Message):
    """The worker has built the model."""

    device: str  # for people: "cpu", "cuda:0 (NVIDIA H200)"


@message(210)
class Trained(Message):
    """The steps of `order` are made, or ended by HandIn; nothing was to be handed in."""

    order: int
    round: int


@message(211)
class Finished(Message):
    """The run's last round is committed, and `agreed` holds what came of it: nothing is left to do."""

    round: int
    samples: int  # tokens behind it
