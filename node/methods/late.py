"""How a replica goes on from what an exchange has made of it, where training went on meanwhile.

An exchange is about the weights that were there when it was launched. What was trained since is in no answer yet, and
is put on top of what the answer has made of the replica:

    theta <- replica + (theta - theta_launched)

With a delay of 0 nothing was trained since, and theta is the replica itself, to the bit. What was trained since is a
part of the next contribution.
"""

from __future__ import annotations

from torch import Tensor

from shoal.node.methods.method import NONE, PARAMETERS, Merged, Vectors

LAUNCHED = "launched"  # the weights that we contributed last, or began with


def check_delay(delay: int, inner_steps: int) -> None:
    """ValueError unless an answer is due before the next exchange begins."""
    if not 0 <= delay < inner_steps:
        raise ValueError(f"delay is {delay}; with {inner_steps} inner steps it must be from 0 to {inner_steps - 1}")


def launched(theta: Tensor, delay: int) -> Vectors:
    """The private vectors of who contributes `theta`, (d,), now; a copy, as training goes on in its place."""
    return {LAUNCHED: theta.float().clone()} if delay else NONE


def resumed(theta: Tensor, replica: Vectors, private: Vectors, delay: int) -> Merged:
    """The weights to train on, (d,), with the replica as the answer has left it."""
    if not delay:
        return Merged(replica[PARAMETERS], private)
    return Merged(replica[PARAMETERS] + (theta - private[LAUNCHED]), private)
