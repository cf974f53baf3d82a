"""What only one member has, as one flat fp32 vector, so that it can lie in shared memory and outlive the worker.

    [steps, first moments (d), second moments (d), private vectors of the method (d each)]

The moments are the inner optimizer's; d numbers are in the order of the model's layout. The private vectors are those
that the method keeps (methods/method.py), as the last contribution leaves them if it is counted: should it not be, who
goes on from here has lost what it held.

Of weights that Muon steps, the first moments are its momentum, and the second 0. Of weights that had no gradient yet
both are 0.

`steps` is the count of AdamW's steps. It is 0 while the rest is being written and where there is nothing yet, so a
worker that dies while it writes leaves nothing that could be taken for moments; and as it only ever grows, a reader
that finds it unchanged after copying has copied a whole vector. What torch has to do with it is in inner_state.py.
"""

from __future__ import annotations

from shoal.node.worker.shm import FloatArray, SharedVector


def moments_size(elements: int, private: int = 0) -> int:
    """Numbers in the vector of a model with so many parameters, and a method with so many private vectors."""
    return 1 + (2 + private) * elements


def copy_whole(shared: SharedVector) -> FloatArray | None:
    """A copy of what a worker has stored; None if there is nothing, or it was writing just then."""
    if not (steps := float(shared.array[0])):
        return None
    copied = shared.copied()
    return copied if steps == float(copied[0]) == float(shared.array[0]) else None
