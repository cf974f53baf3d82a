"""The reader's end, in plain blocking calls: the parameters of a run's newest state, in memory of one's own."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from shoal.node.base.home import Home
from shoal.node.handout.messages import HANDOUT_PROTOCOL, AskWeights, HasWeights, NoWeights
from shoal.node.ipc.link import PREFIX, frame, read_frame
from shoal.node.ipc.private_socket import find_socket
from shoal.node.ipc.shm import FloatArray, SharedVector
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import NO_DIGEST, Digest, RunId
from shoal.protocol.base.wire import Message

PATIENCE = 120.0  # seconds for an answer: a node under load copies gigabytes for a while


@dataclass(frozen=True, slots=True, eq=False)
class Newest:
    """The newest state that a node holds of a run."""

    round: int
    root: Digest
    samples: int  # tokens behind it
    manifest: bytes = b""  # the run's, canonical, with the parameters
    parameters: FloatArray | None = None  # all of them, flat, the caller's own; None: they are known, or not wanted


class NotYet(LocalError):
    """The node has no state of the run, and may have one soon."""


def ask(home: Home, run: RunId, known: Digest = NO_DIGEST, wants: bool = True) -> Newest:
    """What the node of this home has, with the parameters if their root is not `known`.

    LocalError, which says why, if no node runs there or it has no state of the run; TransportError if nobody answers.
    """
    if home.holder() is None:
        raise LocalError(f"no node runs in {home.root}")
    descriptors: list[int] = []
    try:
        answer = _asked(home, AskWeights(HANDOUT_PROTOCOL, run, known, wants), descriptors)
        if isinstance(answer, NoWeights):
            raise NotYet(answer.reason) if answer.waits else LocalError(answer.reason)
        if not isinstance(answer, HasWeights) or len(descriptors) != bool(answer.elements):
            raise TransportError(f"the node in {home.root} gave an answer of the wrong shape")
        if not answer.elements:
            return Newest(answer.round, answer.root, answer.samples)
        vector = SharedVector(descriptors[0], answer.elements)
        descriptors.clear()  # it is the vector's now
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    parameters = vector.array
    vector.close()  # the descriptor; the array keeps its memory
    return Newest(answer.round, answer.root, answer.samples, answer.manifest, parameters)


def _asked(home: Home, question: AskWeights, descriptors: list[int]) -> Message:
    """The node's answer; what rode on it is in `descriptors`, whatever happens."""
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
