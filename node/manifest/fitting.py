"""Checks, before anything is allocated, whether a run fits into this machine's memory; if not, it says what would fit.

Only the memory that the run needs beyond the programs themselves is counted. That is a lower bound: a run that is
refused here would have ended with the system killing a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.node.base.quantities import size
from shoal.node.base.room import AvailableMemory, NoRoom
from shoal.node.manifest.codec import CODECS
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import CustomSpec, HfSpec, ModelSpec
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
    """What this machine would do in a run, as far as it decides about memory."""

    trains: bool = True
    micro_batch: int = 0  # sequences that a worker takes at once; 0: the whole batch
    has_gpu: bool = False  # then the worker's own memory is the GPU's
    nodes: int = 1
    recompute: bool = False  # the worker recomputes activations in the backward pass
    fewest: int = 0  # fewest nodes that a run of `shoal up` may have, which all train with defaults; 0: not of `up`
    text: int = 0  # bytes of text that a worker reads, as measured here; used if the manifest does not say


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """How much of this machine's memory a run needs, in bytes."""

    parameters: int  # how many; not bytes
    state: int  # all versions of the committed state
    node: int  # the node's, with the state and the memory that it shares with the worker
    weights: int  # the worker's weights, gradients and copies
    moments: int
    step: int  # activations, and the text
    least_step: int  # as `step`, at the smallest that a worker chooses by itself when it gets no more memory
    load: Load

    @property
    def worker(self) -> int:
        """Bytes of one worker, without the memory that it shares with its node."""
        return self.weights + self.moments + self.step

    @property
    def together(self) -> int:
        """Bytes of all nodes on this machine and their workers."""
        return self.load.nodes * (self.node + self.worker)

    def fits(self, room: AvailableMemory) -> bool:
        """Whether the limits allow it, both for all together and for each process."""
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


def memory_needs(manifest: Manifest, load: Load = Load(), count: int | None = None) -> MemoryNeeds:
    """What the run needs, or one like it whose model has `count` parameters."""
    count = parameters(manifest.model) if count is None else count
    vectors, whole = vectors_of(manifest), FLOAT * count
    is_script = isinstance(manifest.model, CustomSpec)  # what a script holds, and on which device, is not known
    is_here = load.trains and not load.has_gpu and not is_script
    frozen = FLOAT * manifest.model.frozen if isinstance(manifest.model, HfSpec) else 0
    weights = (vectors.worker - vectors.shared - vectors.inner) * whole + frozen
    texts = text(manifest, load.text) if load.trains else 0
    return MemoryNeeds(
        parameters=count,
        state=VERSIONS * vectors.agreed * whole,
        node=vectors.node * whole + int(KEPT_ROUNDS * CODECS[manifest.codec.gather].value_bytes * count),
        weights=weights if is_here else 0,
        moments=vectors.inner * whole if is_here else 0,
        step=(activations(manifest, load.micro_batch, load.recompute) if is_here else 0) + texts,
        least_step=(activations(manifest, 1, recompute=True) if is_here else 0) + texts,
        load=load,
    )


def memory_problem(manifest: Manifest, room: AvailableMemory, load: Load = Load()) -> str:
    """Says why the run does not fit: what it needs, what there is, and what would fit; empty if it fits."""
    needed = memory_needs(manifest, load)
    if needed.fits(room):
        return ""
    return (
        f"the run '{manifest.name}' is too large for this machine: {needed.parameters:,} parameters "
        f"({size(FLOAT * needed.parameters)}) take {needed}. {_capital(str(room))}. {_what_fits(manifest, room, load)}"
    )


def check_fits(manifest: Manifest, room: AvailableMemory, load: Load = Load()) -> None:
    """Raises NoRoom with the words of `memory_problem` if the run does not fit."""
    if words := memory_problem(manifest, room, load):
        raise NoRoom(words)


def checkpoint_bytes(manifest: Manifest) -> int:
    """Bytes of one checkpoint of the run on disk, with its worker's moments."""
    vectors = vectors_of(manifest)
    return (vectors.agreed + vectors.inner + vectors.keeps) * FLOAT * parameters(manifest.model)


def _what_fits(manifest: Manifest, room: AvailableMemory, load: Load) -> str:
    """Names smaller settings that would fit, in words."""
    ways = _fewer_peers(manifest, room, load) if load.fewest else _less_of_a_node(manifest, room, load)
    ways += [_smaller(manifest, room, load), _less_text(manifest, room, load)]
    return f"What would fit: {', or '.join(way for way in ways if way) or 'nothing with as long texts and batches'}"


def _fewer_peers(manifest: Manifest, room: AvailableMemory, load: Load) -> list[str]:
    """The largest number of nodes with which a run of `shoal up` fits."""
    peers = _largest(load.nodes, lambda nodes: memory_needs(manifest, replace(load, nodes=nodes)).fits(room))
    return [f"the same with --peers {peers}"] if peers >= load.fewest else []


def _less_of_a_node(manifest: Manifest, room: AvailableMemory, load: Load) -> list[str]:
    """Options of `shoal node start` for smaller steps, or for no training at all, with which the run fits."""
    ways = []
    steps = {
        "--micro-batch 1": replace(load, micro_batch=1, recompute=False),
        "--micro-batch 1 --recompute": replace(load, micro_batch=1, recompute=True),
    }
    fitting = [flags for flags, less in steps.items() if memory_needs(manifest, less).fits(room)]
    if load.trains and fitting:
        is_open = "--recompute" in fitting[0] and isinstance(manifest.model, HfSpec)
        if_can = ", if models of its type can recompute" if is_open else ""
        ways.append(f"the same with `shoal node start {fitting[0]}`{if_can}")
    if load.trains and memory_needs(manifest, replace(load, trains=False)).fits(room):
        ways.append("--no-train, which keeps the state and votes")
    return ways


def _smaller(manifest: Manifest, room: AvailableMemory, load: Load) -> str:
    """The largest similar model that fits, in words: with fewer layers; else narrower; else with one narrow layer."""
    spec = manifest.model
    if not isinstance(spec, ModelSpec):
        count = _largest(parameters(spec), lambda count: memory_needs(manifest, load, count).fits(room))
        return f"a model of at most {count:,} parameters" if count else ""

    def fits(**change: int) -> bool:
        model = spec.model_copy(update=change)
        return memory_needs(manifest.model_copy(update={"model": model}), load).fits(room)

    if layers := _largest(spec.layers, lambda layers: fits(layers=layers)):
        return f"{layers} such layer{'s' if layers > 1 else ''}"
    step = 2 * spec.heads  # the width is a multiple of it

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
    """The largest text that fits, in words; empty if less text does not help."""

    def fits(size: int) -> bool:
        resized = manifest.model_copy(update={"data": data.model_copy(update={"size": size})})
        return memory_needs(resized, load).fits(room)

    data = manifest.data
    most = _largest(data.size or load.text, fits) if load.trains else 0
    return f"a text of at most {size(most)}" if most else ""


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, by bisection (smaller numbers fit better); 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
