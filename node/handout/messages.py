"""What a reader of a run's parameters and its node say to each other, over a Unix socket of the node's home.

    reader  AskWeights  ->  node  HasWeights, with the parameters in shared memory if they are new and wanted; or
                                  NoWeights, and why

One question to a connection: so neither end has to know whether the other was started anew meanwhile, and nobody is
told of a commit who has no time for it. A reader asks again when it likes, and what was committed between is skipped.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, RunId
from shoal.protocol.base.wire import Message, message

HANDOUT_PROTOCOL = 1


@message(220)
class AskWeights(Message):
    """For the parameters of a run's newest committed state."""

    protocol: int
    run: RunId
    known: Digest  # the root of the state whose parameters the reader has; NO_DIGEST: it has none
    wants: bool = True  # whether it takes others now; else it only looks


@message(221)
class HasWeights(Message):
    """The state that the node holds. The descriptor of a shared vector rides on the first bytes, if `elements` > 0."""

    round: int
    root: Digest
    samples: int  # tokens behind it
    elements: int = 0  # fp32 numbers in the vector; 0: there is none
    manifest: bytes = b""  # the run's, canonical, with a vector


@message(222)
class NoWeights(Message):
    """The node has nothing to give of this run."""

    reason: str
    waits: bool = False  # whether that may change by itself
