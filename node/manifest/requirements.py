"""What a run costs a machine, in memory and traffic, estimated from the manifest before the run is joined.

This is arithmetic over the sizes of the parts. Memory is fitted to what two members on one machine held after six
rounds on the CPU, with torch's build for CUDA, which accounts for most of the base values. Traffic is that of members
with equal shares. In MiB, measured with DiLoCo, with the estimate in brackets:

    parameters    codecs (there, back)    node             worker           sent in a round
    820,352       fp32, fp32              441   (448)      439   (445)      3.13   (3.13)
    23,732,736    int8, fp32              1,464 (1,496)    1,304 (1,279)    56.1-57.2 (56.6)

For other methods the vectors of the model's size are counted (`Vectors`); they were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.node.manifest.codec import CODECS
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel, CustomSpec, HfSpec, ModelSpec, PictureSpec

MIB = 1 << 20
FLOAT = 4  # bytes
NODE_BASE = 410 * MIB  # a daemon in a run of no parameters: Python, torch, libp2p
WORKER_BASE = 360 * MIB  # a worker with torch, and the text
VERSIONS = 2  # of the agreed state that a node holds; also the number of rounds whose means a worker is shown, if any
DATA_COPIES = 3  # of a run's text while a worker reads it: text by text, joined, and as numbers
TOKEN = 4  # bytes of a token in memory; it stands for at least one byte of text
TOKEN_COPIES = 2  # of a run's text as tokens: text by text, and joined
TOKENIZING = 128 * MIB  # the tokenizer's library while it encodes; measured with 4.5 MB of source code:
# 42 MB with a BPE of 4,096 tokens, and 117 MB with a token for each byte
LAYER_WIDTHS = 12 + 5 * 4  # of a layer of transformers, as of our layer with an MLP four times as wide; not measured
KEPT_ROUNDS = 1  # rounds whose bytes a daemon keeps for members that catch up


@dataclass(frozen=True, slots=True)
class Vectors:
    """How many vectors of the model's size a method needs, by kind (node/training/methods/method.py)."""

    agreed: int = 2  # parameters and outer momentum
    reads: int = 1  # agreed vectors that a worker reads: in shared memory, and a copy to start from
    keeps: int = 0  # private vectors in shared memory, for a worker's successor
    private: int = 0  # private vectors in the worker
    answers: int = 0  # means that a worker is shown
    inner: int = 2  # moments of the inner optimizer, in the worker and again in shared memory
    come: int = 1  # buffers of a round over the whole vector: chunks from others, and chunks to be sent

    @property
    def shared(self) -> int:
        """Vectors in memory that node and worker share, with the contribution."""
        return self.reads + 1 + self.inner + self.keeps + self.answers

    @property
    def node(self) -> int:
        """Vectors of the node: versions of the state, shared memory, and a round's buffers."""
        return VERSIONS * (self.agreed + self.answers) + self.shared + self.come

    @property
    def worker(self) -> int:
        """Vectors of the worker: parameters, gradients, moments, shared memory, and copies of what it reads."""
        return 2 + self.inner + self.private + self.shared + self.reads


DILOCO = Vectors()
VECTORS: Mapping[str, Vectors] = {  # where they are not those of DiLoCo
    "ddp": Vectors(agreed=3, inner=0),  # no inner optimizer: AdamW's moments are agreed
    "diloco-eager": Vectors(reads=2, private=4, answers=1),  # replica, its momentum, its contribution; a read buffer
    "streaming-diloco": Vectors(private=1),  # the worker's own weights, beside the agreed ones
    "sparseloco": Vectors(agreed=1, keeps=1, private=2),  # the error feedback, and the next one
    "noloco": Vectors(private=2, come=2),  # weights at the last two launches; a partner's change and slow weights
    "gossip": Vectors(agreed=1, private=2),
}


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a run costs one member, in bytes."""

    node_memory: int
    worker_memory: int  # with a GPU, mostly the GPU's
    state: int  # that a newcomer downloads
    sent: int  # in a round; if rounds are about fragments, on average
    received: int
    result: int  # of a round, which a newcomer gets of each round since its state; 0: rounds have none


def requirements(manifest: Manifest, members: int) -> Requirements:
    """The costs of a member that trains, in rounds of `members` members, this one included."""
    count, vectors = parameters(manifest.model), vectors_of(manifest)
    mean = CODECS[manifest.codec.gather].value_bytes
    frozen = manifest.model.frozen if isinstance(manifest.model, HfSpec) else 0
    held = FLOAT * (count * vectors.worker + frozen)
    sent = int(bytes_per_parameter(manifest, members) * count)
    return Requirements(
        NODE_BASE + int(count * (vectors.node * FLOAT + KEPT_ROUNDS * mean)),
        WORKER_BASE + held + activations(manifest) + text(manifest),
        vectors.agreed * count * FLOAT,
        sent,
        sent,
        0 if has_no_results(manifest) else int(count * mean / manifest.method.fragments),
    )


def has_no_results(manifest: Manifest) -> bool:
    """Whether members agree on no state, so that who joins copies what one of them has."""
    return manifest.method.has_replicas or manifest.method.name == "experts"


def vectors_of(manifest: Manifest) -> Vectors:
    """The vectors that the run's method needs."""
    return VECTORS.get(manifest.method.name, DILOCO)


def bytes_per_parameter(manifest: Manifest, members: int) -> float:
    """Bytes that a member with an equal share sends in a round, for each parameter of the whole model.

    Each member sends its contribution to the owners, except for its own share, and the mean of its share to all others.
    Fragments differ in size: this is the average over as many rounds as there are fragments.

    Replicas exchange whole vectors in pairs; of an odd number of members one has no partner.
    """
    if manifest.method.name == "experts":
        return 0.0  # each trains alone
    there, back = CODECS[manifest.codec.scatter].value_bytes, CODECS[manifest.codec.gather].value_bytes
    if manifest.method.has_replicas:
        each = there + back if manifest.method.name == "noloco" else there  # change and slow weights, or weights
        return each * (members - members % 2) / max(1, members)
    return (there + back) * (members - 1) / max(1, members) / manifest.method.fragments


def parameters(spec: AnyModel) -> int:
    """How many parameters are trained."""
    if not isinstance(spec, ModelSpec):
        return spec.parameters
    kv = spec.dim // spec.heads * spec.kv_heads
    attention = 2 * spec.dim * spec.dim + 2 * spec.dim * kv
    layer = attention + 3 * spec.dim * spec.hidden + 2 * spec.dim
    return spec.vocab * spec.dim * (1 if spec.tied else 2) + spec.layers * layer + spec.dim


def text(manifest: Manifest, measured: int = 0) -> int:
    """Bytes of memory that reading the run's data takes; `measured` is the size of the data if the manifest has none.

    With a tokenizer this is an upper bound, if no text is much larger than 1 MiB.
    """
    data = manifest.data
    size = data.size or measured
    return DATA_COPIES * size + (TOKENIZING + TOKEN_COPIES * TOKEN * size if data.tokenizer else 0)


def activations(manifest: Manifest, micro_batch: int = 0, recompute: bool = False) -> int:
    """Bytes of activations that a step holds between forward and backward, for `micro_batch` sequences at once.

    0 sequences mean the method's batch. With `recompute` a step holds the inputs of the layers, and either everything
    of one layer or everything after the last one, whichever is more.
    """
    spec = manifest.model
    if isinstance(spec, CustomSpec):
        return 0  # unknown
    batch = min(manifest.method.batch, micro_batch or manifest.method.batch)
    if isinstance(spec, PictureSpec):
        rows, width, layer, end = batch, spec.width, 8 * spec.width + 3 * spec.hidden, 4 * spec.context
    elif isinstance(spec, HfSpec):
        rows, width, layer, end = batch * spec.context, spec.width, LAYER_WIDTHS * spec.width, 3 * spec.vocab
    else:
        rows, width = batch * spec.context, spec.dim
        layer = 12 * spec.dim + 5 * spec.hidden  # norms, projections, rotations and residuals; the gated MLP
        end = 3 * spec.vocab  # logits, their softmax, its gradient
    held = (spec.layers - 1) * width + max(layer, end) if recompute else spec.layers * layer + end
    return FLOAT * rows * held
