"""Experts' files, which hold the parameters of a model in safetensors; and the state with which an expert's run begins.

A file is used only if its tensors have the model's names and shapes, are fp32, and all numbers are finite, whatever
its card says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shoal.node.base.home import Home
from shoal.node.manifest.manifest import Introduction, Manifest, Sign
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.lineage import with_origin
from shoal.node.training.checkpoint.read import Checkpoint, load, load_newest
from shoal.node.training.checkpoint.scan import CHECKPOINTS
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.registry import initial, layout_of
from shoal.node.training.models.tensor_file import write_tensors
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.shape import shape_of
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId

ORIGIN = "origin"  # the folder within a run's
NOBODY = PeerId("-")  # the peer in the checkpoint of a state that no peer has trained


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What an expert's run begins with: a file and its round, or the parameters that the manifest's seed gives."""

    file: Path | None  # None: by the seed
    round: int
    history: Digest
    samples: int


def write_parameters(path: Path, snapshot: Snapshot) -> None:
    """Write the parameters of a leased version of a run's state.

    Optimizer moments are left out: they would treble what is sent every few rounds, and are of use only in the rare
    case that another peer takes over the part.
    """
    write_tensors(path, snapshot.shape.layout.views(snapshot.vectors[PARAMETERS]))


def read_parameters(path: Path, model: AnyModel) -> Tensor:
    """The flat vector (d,) in a file; LocalError unless its tensors are the model's, fp32 and finite."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path} is not a safetensors file: {error}", code="expert-damaged") from error
    if any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise LocalError(f"{path} holds other numbers than fp32", code="expert-damaged")
    try:
        vector = layout_of(model).pack(tensors)
    except LocalError as error:
        raise LocalError(f"{path} is not of the model that it should be of: {error}", code="expert-damaged") from error
    if not bool(torch.isfinite(vector).all()):
        raise LocalError(f"{path} holds numbers that are not finite: its training has diverged", code="model-diverged")
    return vector


def begin(
    manifest: Manifest, sign: Sign, start: StartingPoint, home: Home, me: PeerId
) -> tuple[Introduction, Checkpoint]:
    """Write the checkpoint that a part's run begins with. Returns the run that is to be founded, and the checkpoint."""
    theta = read_parameters(start.file, manifest.model) if start.file is not None else initial(manifest)
    if theta is None:
        raise LocalError(
            f"the seed of {manifest.name} does not give the weights of a model of {manifest.model.name}",
            code="other-model",
        )
    state, about = first_state(manifest, theta, start, (me,))
    of_start = Checkpoint(home.runs, about, manifest, state.current.shape, state.current.vectors, None)
    found = sign(with_origin(manifest, of_start))
    folder = home.make_run_folder(found.run.hex()) / ORIGIN
    return found, load(write_checkpoint(folder, about, state.current, None))


def first_state(
    manifest: Manifest, theta: Tensor, start: StartingPoint, members: tuple[PeerId, ...]
) -> tuple[CommittedState, About]:
    """The state of a run that begins with the parameters theta, (d,), and its checkpoint's description."""
    layout = layout_of(manifest.model)
    agreed, _ = method_of(manifest, layout).begin(theta)
    state = CommittedState(shape_of(manifest, layout), agreed, start.round)
    base = Base(start.round, 0, start.history, state.current.root)
    peer = members[0] if members else NOBODY
    return state, About.of(manifest, manifest.digest, base, members, samples=start.samples, peer=peer, inner_steps=0)


def begin_again(
    manifest: Manifest, sign: Sign, home: Home, run: str, beyond: int
) -> tuple[Introduction, Checkpoint] | None:
    """As `begin`, from our newest checkpoint of an earlier run of the part; None if it is not beyond that round."""
    checkpoint = load_newest(home.run_folder(run) / CHECKPOINTS)
    if checkpoint is None or checkpoint.about.round <= beyond:
        return None
    return sign(with_origin(manifest, checkpoint)), checkpoint
