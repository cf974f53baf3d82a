"""The parameters of this node's runs, handed to other processes of this machine as rounds commit them.

A reader asks over a Unix socket of the node's home:

    reader  AskWeights  ->  node  HasWeights, with the parameters in shared memory if they are new and wanted; or
                                  NoWeights, and why

A connection carries one question. So neither end has to know whether the other has restarted, and a reader that has no
time is not told of commits: it asks again when it likes, and what was committed in between is skipped.

Here are the messages and the reader's end, in plain blocking calls; the node's end is node/daemon/handout.py.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from shoal.node.base.home import Home
from shoal.node.ipc.link import PREFIX, frame, read_frame
from shoal.node.ipc.private_socket import find_socket
from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import NO_DIGEST, Digest, RunId
from shoal.protocol.base.wire import Message, message

HANDOUT_PROTOCOL = 1
PATIENCE = 120.0  # seconds to wait for an answer: a node under load copies gigabytes for a while


@message(220)
class AskWeights(Message):
    """Asks for the parameters of a run's newest committed state."""

    protocol: int
    run: RunId
    known: Digest  # root of the state that the reader has; NO_DIGEST: none
    wants: bool = True  # False: it only wants to know which state is the newest


@message(221)
class HasWeights(Message):
    """The state that the node holds; with `elements` > 0 a shared vector's descriptor comes on the first bytes."""

    round: int
    root: Digest
    samples: int  # tokens behind it
    elements: int = 0  # fp32 numbers in the vector; 0: there is none
    manifest: bytes = b""  # the run's, canonical, with a vector


@message(222)
class NoWeights(Message):
    """The node has nothing to give of this run."""

    reason: str
    waits: bool = False  # whether the node may have something to give soon


# -- the reader -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class NewestState:
    """The newest state that a node holds of a run."""

    round: int
    root: Digest
    samples: int  # tokens behind it
    manifest: bytes = b""  # the run's, canonical, with the parameters
    parameters: FloatArray | None = None  # flat, (d,), the caller's own; None: known already, or not wanted


class NotReady(LocalError):
    """The node has no state of the run, and may have one soon."""

    code = "not-ready"


def fetch_newest(home: Home, run: RunId, known: Digest = NO_DIGEST, wants: bool = True) -> NewestState:
    """The newest state of `run` at the node of this home, with its parameters unless its root is `known`.

    LocalError, which says why, if no node runs there or it has no state of the run (NotReady if it may have one soon);
    TransportError if nobody answers.
    """
    if home.daemon_pid() is None:
        raise LocalError(f"no node runs in {home.root}", code="no-node")
    descriptors: list[int] = []
    try:
        answer = _ask(home, AskWeights(HANDOUT_PROTOCOL, run, known, wants), descriptors)
        if isinstance(answer, NoWeights):
            raise NotReady(answer.reason) if answer.waits else LocalError(answer.reason)
        if not isinstance(answer, HasWeights) or len(descriptors) != bool(answer.elements):
            raise TransportError(f"the node in {home.root} gave an answer of the wrong shape")
        if not answer.elements:
            return NewestState(answer.round, answer.root, answer.samples)
        vector = SharedVector(descriptors[0], answer.elements)
        descriptors.clear()  # it is the vector's now
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    parameters = vector.array
    vector.close()  # the descriptor; the array keeps its memory
    return NewestState(answer.round, answer.root, answer.samples, answer.manifest, parameters)


def _ask(home: Home, question: AskWeights, descriptors: list[int]) -> Message:
    """The node's answer. Descriptors that came with it are added to `descriptors`, also if this raises."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(find_socket(home.weights_socket)))
            connection.sendall(frame(question))
            prefix, came, _, _ = socket.recv_fds(connection, PREFIX, 1)
            descriptors += came
            for descriptor in came:
                os.set_inheritable(descriptor, False)
            return read_frame(connection, prefix)
        except OSError as error:
            raise TransportError(f"the node in {home.root} gives no parameters: {error}") from error
