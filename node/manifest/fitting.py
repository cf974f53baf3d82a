"""Whether a run fits into this machine's memory, before anything of it is made: what it needs, what there is, and what
would fit.

Only what the run needs beyond the programs themselves is counted. That is a lower bound, so a run that is refused would
have ended with the system killing a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.node.base.quantities import size
from shoal.node.base.room import AvailableMemory, NoRoom
from shoal.node.manifest.codec import CODECS
from shoal.node.manifest.custom import CustomSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import HfSpec, ModelSpec
from shoal.node.manifest.requirements import (
    FLOAT,
    KEPT_ROUNDS,
    VERSIONS,
    activations,
    parameters,
    text,
    vectors_of,
)


@dataclass(frozen=True, slots=True)
class Load:
    """How this machine is in a run."""

    trains: bool = True
    micro_batch: int = 0  # sequences that a worker takes at once; 0: the whole batch
    has_gpu: bool = False  # what only a worker needs is in the GPU's own memory
    nodes: int = 1
    recompute: bool = False  # a worker makes activations again
    fewest: int = 0  # nodes that a play of `shoal up` may have, which all train by the defaults; 0: it is no play
    text: int = 0  # bytes that a worker reads, as measured here: counted where the manifest does not say how many


@dataclass(frozen=True, slots=True)
class Sum:
    """What a run takes of this machine's memory, in bytes."""

    parameters: int  # how many
    state: int  # in so many versions as are held
    node: int  # with the state, and what is shared with the worker
    weights: int  # the worker's, with their gradients and its copies
    moments: int
    step: int  # activations, and the text
    least_step: int  # to which a worker comes down by itself, if its process gets no more memory
    load: Load

    @property
    def worker(self) -> int:
        """Beyond what it shares with the node."""
        return self.weights + self.moments + self.step

    @property
    def together(self) -> int:
        """Of all nodes here."""
        return self.load.nodes * (self.node + self.worker)

    def fits(self, room: AvailableMemory) -> bool:
        """Whether there is as much, together and for each process."""
        alone = room.process
        least = self.weights + self.moments + self.least_step
        if alone is not None and (self.node > alone.free or least > alone.total):
            return False
        return self.together <= room.together.free

    def __str__(self) -> str:
        own = f"{size(self.node)} for the node, which holds the state {VERSIONS} times ({size(self.state)})"
        worker = (
            f", and {size(self.worker)} more for its worker ({size(self.weights)} for weights and gradients, "
            f"{size(self.moments)} for moments, {size(self.step)} for a step and the text)"
        )
        times = f"; {self.load.nodes} of them take {size(self.together)}" if self.load.nodes > 1 else ""
        total = f": {size(self.node + self.worker)} in all" if self.worker else ""
        return f"{own}{worker if self.worker else ''}{total}{times}"


def sum_of(manifest: Manifest, load: Load = Load(), count: int | None = None) -> Sum:
    """The sum for a run, or for one like it whose model has `count` parameters."""
    count = parameters(manifest.model) if count is None else count
    vectors, whole = vectors_of(manifest), FLOAT * count
    is_script = isinstance(manifest.model, CustomSpec)  # of which nobody knows what it holds, and where
    is_here = load.trains and not load.has_gpu and not is_script
    frozen = FLOAT * manifest.model.frozen if isinstance(manifest.model, HfSpec) else 0
    weights = (vectors.worker - vectors.shared - vectors.inner) * whole + frozen
    texts = text(manifest, load.text) if load.trains else 0
    return Sum(
        parameters=count,
        state=VERSIONS * vectors.agreed * whole,
        node=vectors.node * whole + int(KEPT_ROUNDS * CODECS[manifest.codec.gather].value_bytes * count),
        weights=weights if is_here else 0,
        moments=vectors.inner * whole if is_here else 0,
        step=(activations(manifest, load.micro_batch, load.recompute) if is_here else 0) + texts,
        least_step=(activations(manifest, 1, recompute=True) if is_here else 0) + texts,
        load=load,
    )


def problem(manifest: Manifest, room: AvailableMemory, load: Load = Load()) -> str:
    """Why the run does not fit, with what it needs, what there is, and what would fit; empty if it fits."""
    needed = sum_of(manifest, load)
    if needed.fits(room):
        return ""
    return (
        f"the run '{manifest.name}' is too large for this machine: {needed.parameters:,} parameters "
        f"({size(FLOAT * needed.parameters)}) take {needed}. {_capital(str(room))}. {_what_fits(manifest, room, load)}"
    )


def check_fits(manifest: Manifest, room: AvailableMemory, load: Load = Load()) -> None:
    """NoRoom, in those words."""
    if words := problem(manifest, room, load):
        raise NoRoom(words)


def checkpoint_bytes(manifest: Manifest) -> int:
    """What one checkpoint of the run takes on the disk, with its worker's moments."""
    vectors = vectors_of(manifest)
    return (vectors.agreed + vectors.inner + vectors.keeps) * FLOAT * parameters(manifest.model)


def _what_fits(manifest: Manifest, room: AvailableMemory, load: Load) -> str:
    """What to choose in its place."""
    ways = _fewer_peers(manifest, room, load) if load.fewest else _less_of_a_node(manifest, room, load)
    ways += [_smaller(manifest, room, load), _less_text(manifest, room, load)]
    return f"What would fit: {', or '.join(way for way in ways if way) or 'nothing with as long texts and batches'}"


def _fewer_peers(manifest: Manifest, room: AvailableMemory, load: Load) -> list[str]:
    """The most that a play can have here."""
    peers = _largest(load.nodes, lambda nodes: sum_of(manifest, replace(load, nodes=nodes)).fits(room))
    return [f"the same with --peers {peers}"] if peers >= load.fewest else []


def _less_of_a_node(manifest: Manifest, room: AvailableMemory, load: Load) -> list[str]:
    """Smaller steps, with which a node is started, or none."""
    ways = []
    steps = {
        "--micro-batch 1": replace(load, micro_batch=1, recompute=False),
        "--micro-batch 1 --recompute": replace(load, micro_batch=1, recompute=True),
    }
    fitting = [flags for flags, less in steps.items() if sum_of(manifest, less).fits(room)]
    if load.trains and fitting:
        is_open = "--recompute" in fitting[0] and isinstance(manifest.model, HfSpec)
        if_can = ", if models of its type can recompute" if is_open else ""
        ways.append(f"the same with `shoal node start {fitting[0]}`{if_can}")
    if load.trains and sum_of(manifest, replace(load, trains=False)).fits(room):
        ways.append("--no-train, which keeps the state and votes")
    return ways


def _smaller(manifest: Manifest, room: AvailableMemory, load: Load) -> str:
    """The largest model of this shape, in words: fewer layers, or if that is not enough narrower ones, or just one."""
    spec = manifest.model
    if not isinstance(spec, ModelSpec):
        count = _largest(parameters(spec), lambda count: sum_of(manifest, load, count).fits(room))
        return f"a model of at most {count:,} parameters" if count else ""

    def fits(**change: int) -> bool:
        model = spec.model_copy(update=change)
        return sum_of(manifest.model_copy(update={"model": model}), load).fits(room)

    if layers := _largest(spec.layers, lambda layers: fits(layers=layers)):
        return f"{layers} such layer{'s' if layers > 1 else ''}"
    step = 2 * spec.heads  # of which the width is a multiple

    def narrow(steps: int) -> dict[str, int]:
        dim = steps * step
        return {"dim": dim, "hidden": spec.hidden if spec.hidden <= dim else max(8, spec.hidden * dim // spec.dim)}

    def widest(layers: int) -> dict[str, int]:
        steps = _largest(spec.dim // step, lambda steps: fits(layers=layers, **narrow(steps)))
        return narrow(steps) if steps else {}

    for layers, words in ((spec.layers, "as many layers"), (1, "one layer")):
        if widths := widest(layers):
            return f"{words} with dim = {widths['dim']}, hidden = {widths['hidden']}"
    return ""


def _less_text(manifest: Manifest, room: AvailableMemory, load: Load) -> str:
    """How much of it, where it is text that was chosen."""

    def fits(size: int) -> bool:
        return sum_of(manifest.model_copy(update={"data": data.model_copy(update={"size": size})}), load).fits(room)

    data = manifest.data
    most = _largest(data.size or load.text, fits) if load.trains else 0
    return f"a text of at most {size(most)}" if most else ""


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, where less fits more; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
