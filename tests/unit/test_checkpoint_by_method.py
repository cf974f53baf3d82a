"""Checkpoints and state files of methods with other vectors than DiLoCo: each vector has its own file or name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shoal.node.ipc.messages import Train
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.checkpoint.about import INNER, MODEL, PRIVATE, About
from shoal.node.training.checkpoint.read import load
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.methods.registry import METHODS, method_of
from shoal.node.training.methods.sparseloco import ERROR
from shoal.node.training.models.decoder import skeleton
from shoal.node.training.models.layout import Layout
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.file import load_state, save_state
from shoal.node.training.state.shape import shape_of
from shoal.node.worker.weights import WorkerWeights
from shoal.protocol.base.errors import LocalError
from tests.unit.checkpoint_kit import MODEL as ONE_LAYER
from tests.unit.checkpoint_kit import about
from tests.unit.methods.agenda_kit import Weights

SPEC = ONE_LAYER.model_copy(update={"layers": 2})  # as many as there are fragments of them
LAYOUT = Layout.of(skeleton(SPEC))
STEPS = 7
FILES = {  # beside the parameters, what is private, and what the checkpoint says about itself
    "ddp": {"first_moment.safetensors", "second_moment.safetensors"},
    "sparseloco": set[str](),
}


def manifest(name: str) -> Manifest:
    return Manifest(name="tiny", model=SPEC, method=MethodSpec(name=name))  # type: ignore[arg-type]


def state(name: str, round: int = 4) -> CommittedState:
    """A state in which all numbers of all vectors differ."""
    generator, shape = torch.Generator().manual_seed(round), shape_of(manifest(name), LAYOUT)
    return CommittedState(shape, {each: torch.rand(LAYOUT.size, generator=generator) for each in shape.vectors}, round)


def moments(name: str) -> FloatArray:
    keeps = len(method_of(manifest(name), LAYOUT).keeps)
    vector = np.random.default_rng(1).random(moments_size(LAYOUT.size, keeps), dtype=np.float32)
    vector[0] = STEPS
    return vector


def written(folder: Path, name: str, own: FloatArray | None) -> Path:
    held = state(name)
    facts: About = about(held, inner_steps=STEPS if own is not None else 0, manifest=manifest(name))
    return write_checkpoint(folder, facts, held.current, own)


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_has_all_that_the_method_remembers(tmp_path: Path, name: str) -> None:
    own = moments(name)
    path = written(tmp_path, name, own)
    loaded = load(path)
    assert loaded.committed().current.root == state(name).current.root
    assert loaded.vectors.keys() == state(name).current.vectors.keys()
    for each, vector in state(name).current.vectors.items():
        assert torch.equal(loaded.vectors[each], vector), each
    assert loaded.moments is not None
    assert np.array_equal(loaded.moments, own)


@pytest.mark.parametrize("name", FILES)
def test_each_vector_is_a_file_with_the_models_names(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, None if name == "ddp" else moments(name))
    files = {each.name for each in path.glob("*.safetensors")} - {MODEL}
    assert files == FILES[name] | ({INNER, PRIVATE} if name == "sparseloco" else set())
    for file in FILES[name]:
        assert load_file(path / file).keys() == load_file(path / MODEL).keys()


def test_the_error_of_sparseloco_is_in_a_file_of_its_own_and_must_be_there(tmp_path: Path) -> None:
    own = moments("sparseloco")
    path = written(tmp_path, "sparseloco", own)
    tensors = load_file(path / PRIVATE)
    assert tensors.keys() == {f"{ERROR}.{place.name}" for place in LAYOUT}
    packed = LAYOUT.pack({name.removeprefix(f"{ERROR}."): each for name, each in tensors.items()})
    assert np.array_equal(packed.numpy(), own[1 + 2 * LAYOUT.size :])
    (path / PRIVATE).unlink()
    with pytest.raises(LocalError):
        load(path)


def test_a_worker_goes_on_with_the_error_of_the_checkpoint(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, "sparseloco", moments("sparseloco")))
    assert loaded.moments is not None
    error = loaded.moments[1 + 2 * LAYOUT.size :].copy()
    method, weights = method_of(loaded.manifest, LAYOUT), Weights(LAYOUT.size)
    agreed = loaded.vectors[PARAMETERS].numpy()
    trained = WorkerWeights(method, weights, agreed, loaded.moments, None)
    trained.take(Train(1, 5, 0, version=4, is_fresh=True))
    assert torch.equal(weights.theta, loaded.vectors[PARAMETERS])
    out = torch.empty(LAYOUT.size)
    trained.contribute(5, weights.read(), out)  # nothing was trained: what is sent is of the error alone
    expected = method.contribute(0, weights.read(), loaded.vectors, {ERROR: torch.from_numpy(error)})
    assert expected.payload.any()
    assert torch.equal(out, expected.payload)
    trained.keep()
    assert np.array_equal(loaded.moments[1 + 2 * LAYOUT.size :], expected.private[ERROR].numpy())


def test_a_worker_that_is_told_to_begin_anew_once_more_has_no_error() -> None:
    """The state came from elsewhere: what was not sent belongs to rounds that others have gone on from."""
    own, agreed = moments("sparseloco"), np.zeros(LAYOUT.size, dtype=np.float32)
    weights = Weights(LAYOUT.size)
    trained = WorkerWeights(method_of(manifest("sparseloco"), LAYOUT), weights, agreed, own, None)
    for version in (4, 9):
        trained.take(Train(1, version + 1, 0, version=version, is_fresh=True))
    out = torch.empty(LAYOUT.size)
    assert not trained.contribute(10, weights.read(), out).any()


@pytest.mark.parametrize("name", METHODS)
def test_a_state_file_reads_back(tmp_path: Path, name: str) -> None:
    held, path = state(name), tmp_path / "state.safetensors"
    save_state(held.current, path)
    loaded = load_state(path, held.shape)
    assert (loaded.current.round, loaded.current.root) == (4, held.current.root)
    names = load_file(path).keys()
    assert len(names) == len(held.shape.vectors) * len(list(LAYOUT))
    for vector in held.shape.vectors[1:]:
        assert f"outer.{vector}.model.norm.weight" in names


def test_a_state_file_of_another_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(state("ddp").current, path)
    for other in ("diloco", "sparseloco"):
        with pytest.raises(LocalError):
            load_state(path, state(other).shape)
