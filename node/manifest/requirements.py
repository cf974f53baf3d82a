"""What a run costs a machine, in memory and traffic, estimated from the manifest before the run is joined.

Pure arithmetic over the sizes of the parts. Memory is fitted to what two members on one machine held after six rounds
on the CPU, with torch's build for CUDA, which accounts for most of the base values; traffic is that of members with
equal shares. In MiB, measured with DiLoCo and, in brackets, estimated:

    parameters    codecs (there, back)    node             worker           sent in a round
    820,352       fp32, fp32              441   (448)      439   (445)      3.13   (3.13)
    23,732,736    int8, fp32              1,464 (1,496)    1,304 (1,279)    56.1-57.2 (56.6)

What other methods hold is counted, in vectors of the model's size (`Vectors`), and was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.node.manifest.codec import CODECS
from shoal.node.manifest.custom import CustomSpec
from shoal.node.manifest.flow import PictureSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel, HfSpec, ModelSpec

MIB = 1 << 20
FLOAT = 4  # bytes
NODE_BASE = 410 * MIB  # a daemon in a run of no parameters: Python, torch, libp2p
WORKER_BASE = 360 * MIB  # a worker with torch, and the text
VERSIONS = 2  # of the agreed state; a worker is shown the means of as many rounds, if of any
DATA_COPIES = 3  # of a run's text, while a worker reads it: one by one, joined, and as numbers
TOKEN = 4  # bytes of one in memory; how many bytes of text it stands for, the manifest does not say: one at least
TOKEN_COPIES = 2  # of a run's text as tokens: text by text, and joined
TOKENIZING = 128 * MIB  # its library, while it encodes a few texts: of 4.5 MB of sources, measured beyond the rest,
# 42 MB with a BPE of 4,096 tokens and 117 MB with one for each byte
LAYER_WIDTHS = 12 + 5 * 4  # of a library's layer, as if it were ours with an MLP four times as wide; not measured
KEPT_ROUNDS = 1  # whose bytes a daemon keeps, for those who catch up


@dataclass(frozen=True, slots=True)
class Vectors:
    """How many vectors of the model's size a method needs, and of which kind (methods/method.py)."""

    agreed: int = 2  # parameters and outer momentum
    reads: int = 1  # of them, by a worker: in shared memory, and a copy to start from
    keeps: int = 0  # private ones, in shared memory for a worker's successor
    private: int = 0  # private ones, in the worker
    answers: int = 0  # means that a worker is shown
    inner: int = 2  # moments of inner steps, and again in shared memory
    come: int = 1  # in a round, where it is about the whole vector: chunks of others, and those that are to go

    @property
    def shared(self) -> int:
        """By a node and its worker, with the contribution."""
        return self.reads + 1 + self.inner + self.keeps + self.answers

    @property
    def node(self) -> int:
        """Versions of the state, what is shared, and what comes in a round."""
        return VERSIONS * (self.agreed + self.answers) + self.shared + self.come

    @property
    def worker(self) -> int:
        """Parameters, gradients, moments, what is shared, and copies of what it reads."""
        return 2 + self.inner + self.private + self.shared + self.reads


DILOCO = Vectors()
VECTORS: Mapping[str, Vectors] = {  # where they are not those of DiLoCo
    "ddp": Vectors(agreed=3, inner=0),  # no inner steps: AdamW's moments are agreed
    "diloco-eager": Vectors(reads=2, private=4, answers=1),  # a replica, its momentum, its share; what it reads into
    "streaming-diloco": Vectors(private=1),  # weights that go on, beside those that are agreed
    "sparseloco": Vectors(agreed=1, keeps=1, private=2),  # the error, and the next one
    "noloco": Vectors(private=2, come=2),  # the weights that were launched, last and now; change and slow weights
    "gossip": Vectors(agreed=1, private=2),
}


@dataclass(frozen=True, slots=True)
class Requirements:
    """Bytes."""

    node_memory: int
    worker_memory: int  # on a GPU, most of it is there
    state: int  # downloaded by who comes new
    sent: int  # in a round, of so many members as there are; where rounds are about fragments, on average
    received: int


def requirements(manifest: Manifest, members: int) -> Requirements:
    """Of a member that trains; `members` are those of a round, with us."""
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
    )


def vectors_of(manifest: Manifest) -> Vectors:
    """What the run's method holds."""
    return VECTORS.get(manifest.method.name, DILOCO)


def bytes_per_parameter(manifest: Manifest, members: int) -> float:
    """What a member with an equal share sends in a round, for each parameter of the whole model.

    All but our own share of a round's part goes to its owners, and the means of our share to all others. The parts of a
    model that is sent in fragments differ in size: this is the average over rounds in which each comes once.

    Of replicas two exchange all that they send, in full; of an odd number one does not.
    """
    if manifest.method.name == "experts":
        return 0.0  # each trains alone
    there, back = CODECS[manifest.codec.scatter].value_bytes, CODECS[manifest.codec.gather].value_bytes
    if manifest.method.has_replicas:
        each = there + back if manifest.method.name == "noloco" else there  # change and slow weights, or weights
        return each * (members - members % 2) / max(1, members)
    return (there + back) * (members - 1) / max(1, members) / manifest.method.fragments


def parameters(spec: AnyModel) -> int:
    """How many are trained."""
    if not isinstance(spec, ModelSpec):
        return spec.parameters
    kv = spec.dim // spec.heads * spec.kv_heads
    attention = 2 * spec.dim * spec.dim + 2 * spec.dim * kv
    layer = attention + 3 * spec.dim * spec.hidden + 2 * spec.dim
    return spec.vocab * spec.dim * (1 if spec.tied else 2) + spec.layers * layer + spec.dim


def text(manifest: Manifest, measured: int = 0) -> int:
    """What reading the run's data takes, of which so many bytes were measured if the manifest does not say.

    With a tokenizer it is the most, if no text among them is much larger than 1 MiB.
    """
    data = manifest.data
    size = data.size or measured
    return DATA_COPIES * size + (TOKENIZING + TOKEN_COPIES * TOKEN * size if data.tokenizer else 0)


def activations(manifest: Manifest, micro_batch: int = 0, recompute: bool = False) -> int:
    """What a step of `batch` sequences, or of so many at once, holds between forward and backward, each made once.

    With `recompute` it holds the layers' inputs, and all of one layer or what comes after the last, which is more.
    """
    spec = manifest.model
    if isinstance(spec, CustomSpec):
        return 0  # only its script knows
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
