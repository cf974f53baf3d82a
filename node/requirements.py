"""What being in a run costs a machine: memory and traffic, estimated from the manifest before anything is joined.

Pure arithmetic over the sizes of the parts. The memory is fitted to what two members on one machine held after six
rounds on the CPU, with torch's build for CUDA, which makes most of the bases; the traffic is that of members with equal
shares. In MiB, measured and, in brackets, estimated:

    parameters    codecs (there, back)    node             worker           sent in a round
    820,352       fp32, fp32              441   (448)      439   (445)      3.13   (3.13)
    23,732,736    int8, fp32              1,464 (1,496)    1,304 (1,279)    56.1-57.2 (56.6)
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.manifest import Manifest, ModelSpec

MIB = 1 << 20
FLOAT = 4  # bytes
VALUE_BYTES = {  # on the wire for one number: its code, and its share of what is sent for its block
    "fp32": FLOAT,
    "fp16": 2 + 2 / 1024,
    "bf16": 2,
    "int8": 1 + 4 / 1024,
    "uint8": 1 + 1024 / 65_536,
    "fp4": 0.5 + 4 / 1024,
    "sign": 1 / 8 + 4 / 1024,
    "topk": 120 / 4096,
    "fedzip": 19 / 8 * 64 / 4096,  # the most
}
NODE_BASE = 410 * MIB  # a daemon in a run of no parameters: Python, torch, libp2p
WORKER_BASE = 360 * MIB  # a worker with torch, and the text
NODE_VECTORS = 9  # of the model's size: two versions of two, those shared with the worker, this round's chunks
WORKER_VECTORS = 9  # parameters, gradients, two moments, what is shared, a copy to start from
DATA_COPIES = 3  # of a run's text, while a worker reads it: one by one, joined, and as numbers
KEPT_ROUNDS = 1  # whose bytes a daemon keeps, for those who catch up


@dataclass(frozen=True, slots=True)
class Requirements:
    """Bytes."""

    node_memory: int
    worker_memory: int  # on a GPU, most of it is there
    state: int  # downloaded by who comes new
    sent: int  # in a round, of so many members as there are
    received: int


def requirements(manifest: Manifest, members: int) -> Requirements:
    """Of a member that trains; `members` are those of a round, with us."""
    count = parameters(manifest.model)
    values = [VALUE_BYTES[manifest.codec.scatter], VALUE_BYTES[manifest.codec.gather]]
    payload = int(count * sum(values) * (members - 1) / max(1, members))  # all but our own share, there and back
    return Requirements(
        NODE_BASE + int(count * (NODE_VECTORS * FLOAT + KEPT_ROUNDS * values[1])),
        WORKER_BASE + count * WORKER_VECTORS * FLOAT + activations(manifest) + DATA_COPIES * manifest.data.size,
        2 * count * FLOAT,  # parameters and outer momentum
        payload,
        payload,
    )


def parameters(spec: ModelSpec) -> int:
    """How many the model has."""
    kv = spec.dim // spec.heads * spec.kv_heads
    attention = 2 * spec.dim * spec.dim + 2 * spec.dim * kv
    layer = attention + 3 * spec.dim * spec.hidden + 2 * spec.dim
    return spec.vocab * spec.dim * (1 if spec.tied else 2) + spec.layers * layer + spec.dim


def activations(manifest: Manifest) -> int:
    """What a step of `batch` sequences holds between forward and backward, without recomputation."""
    spec, method = manifest.model, manifest.method
    tokens = method.batch * spec.context
    layer = 12 * spec.dim + 5 * spec.hidden  # norms, projections, rotations and residuals; the gated MLP
    return FLOAT * tokens * (spec.layers * layer + 3 * spec.vocab)  # logits, their softmax, its gradient
