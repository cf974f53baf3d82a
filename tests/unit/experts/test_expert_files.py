"""Files of experts: which are valid, with what a part begins, and where a liar is found out."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal.node.base.home import Home
from shoal.node.experts.card import hash_file, make_card
from shoal.node.experts.files import (
    StartingPoint,
    begin,
    begin_again,
    read_parameters,
    write_parameters,
)
from shoal.node.experts.founding import allot, check_seed, seeded, with_own, write_seed
from shoal.node.experts.library import FILE, Library
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.read import load
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.data.supply import GIB, Supply
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.models.registry import initial, layout_of
from shoal.node.training.models.tensor_file import write_tensors
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, PieceIs
from tests.run_kit import id_of, on_paper
from tests.unit import checkpoint_kit
from tests.unit.dataset_kit import LIAR as LIAR_AT
from tests.unit.dataset_kit import Peers, honest, lying
from tests.unit.experts.family_kit import ANNA, BOB, FAMILY, signer

assert FAMILY.experts is not None
NET, TEXT = FAMILY.experts.parts
ME = ANNA.peer
HISTORY = Digest(bytes(range(32)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def parameters_file(path: Path, family: Manifest = FAMILY, scale: float = 2.0) -> Path:
    theta = initial(family)
    assert theta is not None
    write_tensors(path, layout_of(family.model).views(theta * scale))
    return path


def test_without_a_seed_a_part_begins_with_what_the_manifests_seed_gives(home: Home) -> None:
    begun, checkpoint = begin(part_manifest(FAMILY, NET), on_paper, StartingPoint(None, 0, HISTORY, 0), home, ME)
    assert checkpoint.vectors[PARAMETERS].equal(initial(FAMILY))  # type: ignore[arg-type]
    manifest = begun.manifest
    assert manifest.first_round == 1
    assert manifest.origin is not None
    assert manifest.origin.root == checkpoint.about.root
    assert load(checkpoint.path).about.root == checkpoint.about.root


def test_a_part_that_is_taken_over_goes_on_at_the_files_round(home: Home, tmp_path: Path) -> None:
    file = parameters_file(tmp_path / "net.safetensors")
    begun, checkpoint = begin(part_manifest(FAMILY, NET), on_paper, StartingPoint(file, 6, HISTORY, 600), home, ME)
    assert checkpoint.vectors[PARAMETERS].equal(read_parameters(file, FAMILY.model))
    assert not checkpoint.vectors[MOMENTUM].any()
    assert (begun.manifest.first_round, checkpoint.about.samples) == (7, 600)
    assert checkpoint.about.members == (ME,), "a newcomer's lane would be another than that of its predecessor"
    assert replace(checkpoint, path=Path()).manifest.rounds.last == 10


def test_after_a_crash_the_own_checkpoint_wins_if_it_is_beyond(home: Home) -> None:
    begun, origin = begin(part_manifest(FAMILY, NET), on_paper, StartingPoint(None, 0, HISTORY, 0), home, ME)
    run = begun.run.hex()
    assert begin_again(part_manifest(FAMILY, NET), on_paper, home, run, 0) is None
    held = origin.committed()
    held.skip(4)
    about = origin.about.model_copy(
        update={"round": 4, "run": run, "manifest": begun.manifest.canonical().hex(), "inner_steps": 16}
    )
    write_checkpoint(home.run_folder(run) / "checkpoints", about, held.current, checkpoint_kit.moments(held, 16))
    found = begin_again(part_manifest(FAMILY, NET), on_paper, home, run, 2)
    assert found is not None
    assert found[0].manifest.first_round == 5
    assert found[1].moments is not None
    assert begin_again(part_manifest(FAMILY, NET), on_paper, home, run, 4) is None


def test_a_family_begins_with_a_checkpoint_of_any_method(home: Home, tmp_path: Path) -> None:
    seed = load(checkpoint_kit.write(tmp_path / "seed", 4))
    with pytest.raises(LocalError, match="neither the family's nor one of its parts'"):
        allot(FAMILY, [seed])
    table = FAMILY.model_dump() | {"model": checkpoint_kit.MODEL.model_dump()}
    family = seeded(Manifest.model_validate(table), seed)
    assert family.origin is not None
    assert family.origin.samples == seed.about.samples
    write_seed(tmp_path / "seed.safetensors", seed)
    check_seed(tmp_path / "seed.safetensors", family)
    tensors = load_file(tmp_path / "seed.safetensors")
    next(iter(tensors.values()))[0] += 1
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(LocalError, match="not the family's seed"):
        check_seed(tmp_path / "other.safetensors", family)


def of_model(model: object) -> Manifest:
    return checkpoint_kit.MANIFEST.model_copy(update={"model": model})


def test_each_model_of_a_family_has_a_seed_of_its_own(tmp_path: Path) -> None:
    model = experts_of(FAMILY).parts[1].model
    own = load(checkpoint_kit.write(tmp_path / "own", 4, of_model(model)))
    common = load(checkpoint_kit.write(tmp_path / "common", 3, of_model(FAMILY.model)))
    assert allot(FAMILY, [own, common]) == (common, [own])
    with pytest.raises(LocalError, match="are of one model"):
        allot(FAMILY, [own, common, own])
    write_seed(tmp_path / "seed.safetensors", own)
    file = hash_file(tmp_path / "seed.safetensors")
    family = with_own(FAMILY, own, file)
    net, text = experts_of(family).parts
    assert net.seed is None
    assert text.seed is not None
    assert (text.seed.file, text.seed.tokens) == (file.hex(), own.about.samples)
    read_parameters(tmp_path / "seed.safetensors", text.model or family.model)


def test_what_is_no_expert_is_refused(tmp_path: Path) -> None:
    good = load_file(parameters_file(tmp_path / "good"))
    name, tensor = next(iter(good.items()))
    bad = {
        "not those of the model": {**good, "extra": torch.zeros(1)},
        "instead of": {**good, name: torch.zeros(3)},
        "other numbers than fp32": {**good, name: tensor.double()},
        "not finite": {**good, name: tensor * torch.inf},
    }
    for words, tensors in bad.items():
        save_file(tensors, tmp_path / "bad")
        with pytest.raises(LocalError, match=words):
            read_parameters(tmp_path / "bad", FAMILY.model)
    (tmp_path / "bad").write_bytes(b"nonsense")
    with pytest.raises(LocalError, match="not a safetensors file"):
        read_parameters(tmp_path / "bad", FAMILY.model)
    with pytest.raises(LocalError):
        read_parameters(tmp_path / "good", TEXT.model or FAMILY.model)


def library(root: Path, peers: Peers | None = None, limit: int = GIB) -> tuple[Library, Supply]:
    supply = Supply(root / "data", (), limit, True, (peers or Peers()).call)
    return Library(root / "experts", supply), supply


@pytest.mark.asyncio
async def test_a_file_is_made_given_and_fetched_from_any_holder_and_a_liar_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin, supply = library(tmp_path / "origin")
    made = await origin.make(parameters_file)
    assert made.path is not None
    assert made.path.name == FILE
    assert made.digest == hash_file(made.path)
    card = make_card(id_of(FAMILY, BOB.peer), "net", made, 4, 16, 400, 3.5, signer(BOB))
    answer = await supply.answer(PeerId("x"), GetPiece(card.root, 0, 0))
    assert answer == PieceIs(made.path.read_bytes())

    peers = Peers(liar=lying(made))
    fetched, _ = library(tmp_path / "other", peers)
    with pytest.raises(TransportError, match="round 4 of the expert 'net' cannot be fetched"):
        await fetched.fetch(card, peers.names)
    lies = [record for record in caplog.records if getattr(record, "code", "") == "data-liar"]
    assert len(lies) == 1
    assert LIAR_AT in lies[0].getMessage()
    peers.donors[ME] = honest(made)
    path = await fetched.fetch(card, peers.names)
    assert hash_file(path) == card.file
    assert path.read_bytes() == made.path.read_bytes()
    again, _ = library(tmp_path / "other")
    assert await again.open(card), "it is not there any more after a restart"
    path.write_bytes(path.read_bytes()[::-1])
    third, _ = library(tmp_path / "other")
    assert not await third.open(card), "a damaged file passes for an expert"


@pytest.mark.asyncio
async def test_no_more_is_fetched_than_the_owner_allows(tmp_path: Path) -> None:
    origin, _ = library(tmp_path / "origin")
    made = await origin.make(parameters_file)
    card = make_card(id_of(FAMILY, BOB.peer), "net", made, 4, 16, 400, 3.5, signer(BOB))
    peers = Peers(anna=honest(made))
    small, _ = library(tmp_path / "small", peers, limit=made.index.size - 1)
    assert not small.has_room(card.size)
    with pytest.raises(LocalError, match="--data-limit"):
        await small.fetch(card, peers.names)
    assert peers.asked == []


@pytest.mark.asyncio
async def test_what_is_dropped_is_no_longer_given_and_leftovers_go(tmp_path: Path) -> None:
    (tmp_path / "experts" / "new-0123").mkdir(parents=True)
    kept, supply = library(tmp_path)
    await kept.tidy(list)
    made = await kept.make(partial(parameters_file, scale=1.0))
    await kept.tidy(list)  # once only: by now there are files that are on their way
    assert sorted(path.name for path in (tmp_path / "experts").iterdir()) == [made.digest.hex()]
    await kept.drop(made.digest)
    answer: Message = await supply.answer(PeerId("x"), GetPiece(made.root, 0, 0))
    assert not isinstance(answer, PieceIs)
    assert kept.used == 0
    assert not list((tmp_path / "experts").iterdir())


def test_a_version_of_a_runs_state_is_written_as_a_checkpoint_writes_it(tmp_path: Path) -> None:
    held = checkpoint_kit.state(3)
    write_parameters(tmp_path / "file", held.current)
    checkpoint = checkpoint_kit.write(tmp_path / "checkpoints", 3)
    assert (tmp_path / "file").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert json.loads((checkpoint / "checkpoint.json").read_text())["round"] == 3
