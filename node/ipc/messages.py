"""What a daemon and its worker say to each other, over a Unix socket of the run's folder.

    worker  Hello  ->            its process; the daemon answers Welcome, with the shared vectors, or Unwelcome
    worker  Ready  ->            the model is built, on this device
    daemon  Train  ->  Validated if that is asked for, Progress* ->  Contribution, or Trained if none was asked for
    daemon  HandIn ->  the same, with the steps done so far
    daemon  Hurry  ->  a measurement is broken off, and the steps begin
    daemon  Stop   ->  the worker ends; a closed socket means the same
    daemon  Finished ->  the run's last round is committed, and `agreed` is the result (sent to scripts, see below)
    worker  Failed ->  this order, or in round 0 any order, cannot be carried out; the worker ends

Rules:
- `agreed` and `answer` (vectors.py) are written by the daemon, and read by the worker when Train arrives. What was read
  is valid if `loaded` still names the order afterwards; else the daemon has begun to write for the next one.
- `contribution` belongs to the worker from a Train that asks for a contribution, or for the weights to be shown, until
  its answer, and then to the daemon until the next such Train.
- `moments` (vectors.py) changes hands in the same way, but the worker begins with what the daemon or an earlier worker
  left there. It is written at each hand-in, kept in checkpoints, and survives the worker. A worker without moments
  leaves it alone.
- The weights that a worker trains are its own, and it keeps them from order to order: `landings` tell it which rounds
  were committed in between. A worker without weights, or with an order that `is_fresh`, takes those of `agreed`.
- A new Train replaces the one before. Orders are numbered, so that an answer to an old one is recognised and
  ignored; so is a HandIn for an order that was already handed in.
- A worker that is asked to measure the validation loss does so before its steps, with the parameters of `agreed`, and
  trains afterwards as it would have without. It need not answer: a script may have nothing to measure with. A new
  order, HandIn and Hurry end a measurement.

Any program may be the worker: the built-in trainer relies on nothing but what is said here. In a custom run
(manifest/model.py) a script of the user's is the worker (client/script/). It comes and goes as it likes: the daemon
neither starts nor ends it, and it survives the end of its connection.
"""

from __future__ import annotations

from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes
from shoal.protocol.base.wire import Message, message, value

WORKER_PROTOCOL = 8
MAX_FRAME = 256 << 10  # a Welcome carries a manifest of at most 64 KiB
MOST_SEQUENCES = 256  # of a validation loss


@message(200)
class Hello(Message):
    """The worker's first message."""

    protocol: int
    pid: int


@message(201)
class Welcome(Message):
    """The daemon's answer; the descriptors of the shared vectors come with its first bytes."""

    manifest: bytes  # canonical
    sizes: Sizes
    threads: int
    device: str  # "auto", "cpu", "cuda", "cuda:1", "mps"
    data: tuple[bytes, ...]  # paths of local files and folders; they need not be UTF-8
    trainer: TrainerOptions = TrainerOptions()


@message(202)
class Unwelcome(Message):
    """The daemon's answer to a worker that it turns away."""

    reason: str


@value
class Range:
    """A half-open range of indices in the vector of a round's part."""

    start: int
    stop: int


@value
class Landing:
    """A committed round whose answer the worker is to merge into its weights."""

    round: int
    is_there: bool  # False: the state with which the daemon began held its mean already
    is_shown: bool  # `agreed` and `answer` are those of this round, not of a later one
    members: int  # number of members whose contributions are in the mean
    missed: tuple[Range, ...]  # parts of the worker's own contribution that are not in the mean


@message(203)
class Train(Message):
    """Merge the landings, make `steps` inner steps of `round` on the data of `lane`, and hand in if `hand_in`."""

    order: int
    round: int
    lane: int
    version: int  # the round whose state is in `agreed`
    first: int = 0  # index of the first of these steps in the round
    steps: int = 1
    hand_in: bool = True
    is_fresh: bool = False  # begin with the weights of `agreed`
    landings: tuple[Landing, ...] = ()  # the worker skips those that it has merged already
    samples: int = 0  # tokens behind the state of the newest round, of all members
    shows: bool = False  # afterwards leave the weights in `contribution`, without handing in
    validates: int = 0  # before the steps: measure the validation loss of `agreed` on so many held-out sequences


@message(204)
class HandIn(Message):
    """End `order` now and contribute what there is, even if it is nothing."""

    order: int


@message(205)
class Stop(Message):
    """The worker is to end."""


@message(206)
class Progress(Message):
    """One inner step of `order` was made."""

    order: int
    round: int
    step: int  # in this round, from 1
    loss: float | None  # None: unknown to the worker
    tokens: int  # trained on in this round
    tokens_per_second: float
    device_bytes: int  # bytes of the device's own memory that the worker holds
    utilisation: float  # share of the recent time in which steps were made
    micro_batch: int = 0  # sequences that are processed at once; 0: unknown
    model_flops_utilization: float | None = None  # share of the device's peak FLOPS; None: unknown


@message(207)
class Contribution(Message):
    """The vector `contribution` holds the result of `steps` inner steps of the round on `tokens` tokens."""

    order: int
    round: int
    steps: int
    tokens: int  # 0: nothing was trained, and the vector is meaningless
    loss: float | None  # mean over the steps


@message(208)
class Failed(Message):
    """The worker cannot carry out `order`, or any order (0) if it is not ready yet; it ends."""

    order: int
    round: int
    reason: str
    is_final: bool = False  # another worker would fail, too (worker_end.py)
    is_mistake: bool = False  # a bug, which another worker would have as well from the same start


@message(209)
class Ready(Message):
    """The worker has built its model."""

    device: str  # for people: "cpu", "cuda:0 (NVIDIA H200)"


@message(210)
class Trained(Message):
    """The steps of `order`, which asks for no contribution, are made, or were ended by HandIn."""

    order: int
    round: int


@message(211)
class Finished(Message):
    """The run's last round is committed, and `agreed` holds the final state: nothing is left to do."""

    round: int
    samples: int  # tokens behind the state


@message(212)
class Hurry(Message):
    """The other members wait: go on with the steps of `order`, without a measurement."""

    order: int


@message(213)
class Validated(Message):
    """The validation loss of the state with which `order` begins."""

    order: int
    round: int  # of the order
    loss: float | None  # in nats; None: it was broken off, or has failed, or is not finite
    sequences: int  # on how many it was measured; 1 for a script's own measurement
    seconds: float
