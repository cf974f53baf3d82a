"""The data of a node's runs: from its home, from --data, from others; or one sentence why there are none."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from shoal.node.manifest.data import NO_COLUMNS
from shoal.node.manifest.manifest import DataSpec, Manifest
from shoal.node.training.data.pieces import PIECES
from shoal.node.training.data.store import Dataset
from shoal.node.training.data.supply import GIB, DataStanding, Supply
from shoal.protocol.base.errors import LocalError
from shoal.protocol.messages.data import GetPiece
from shoal.protocol.messages.node import Refused
from tests.unit.dataset_kit import ANNA, BOB, Peers, honest, packed, wanted, write_texts

FILES = Manifest(name="notes", data=DataSpec(name="files"))


def supply(root: Path, *paths: Path, peers: Peers | None = None, limit: int = GIB, shares: bool = True) -> Supply:
    return Supply(root / "data", paths, limit, shares, (peers or Peers()).call)


def named(dataset: Dataset) -> DataSpec:
    found = wanted(dataset)
    return DataSpec(name="files", digest=found.digest.hex(), pieces=found.root.hex(), size=found.size)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts-0-7")  # those of the dataset below


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return packed(tmp_path)


@pytest.mark.asyncio
async def test_a_founder_names_its_text(tmp_path: Path, texts: Path, dataset: Dataset) -> None:
    founder = supply(tmp_path, texts)
    manifest = await founder.named(FILES)
    assert manifest.data == named(dataset)
    assert manifest.completes(FILES)
    assert await founder.named(manifest) == manifest
    assert await founder.named(Manifest(name="other")) == Manifest(name="other")


@pytest.mark.asyncio
async def test_who_does_not_share_names_no_pieces_and_makes_no_copy(tmp_path: Path, texts: Path) -> None:
    founder = supply(tmp_path, texts, shares=False)
    data = (await founder.named(FILES)).data
    assert (len(data.digest), data.pieces, data.size) == (64, "", 0)
    assert await founder.get(data, list) == (str(texts),)
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize("digest", ["", "ab" * 32])
@pytest.mark.asyncio
async def test_a_founder_without_the_text_is_told(tmp_path: Path, digest: str) -> None:
    manifest = FILES.model_copy(update={"data": DataSpec(name="files", digest=digest)})
    with pytest.raises(LocalError, match="--data"):
        await supply(tmp_path).named(manifest)


@pytest.mark.asyncio
async def test_a_joiner_gets_it_and_gives_it_on(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, peers=peers)
    (path,) = await joiner.get(named(dataset), peers.names)
    assert dataset.path is not None
    assert Path(path).read_bytes() == dataset.path.read_bytes()
    assert joiner.obstacle() is None
    gives_on = await joiner.answer(BOB, GetPiece(dataset.root, PIECES, 0))
    assert gives_on == honest(dataset)(GetPiece(dataset.root, PIECES, 0))


@pytest.mark.asyncio
async def test_who_is_paused_fetches_and_gives_nothing_until_it_goes_on(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, peers=peers)
    joiner.is_paused = True
    with pytest.raises(LocalError, match="paused"):
        await joiner.get(named(dataset), peers.names)
    joiner.is_paused = False
    await joiner.get(named(dataset), peers.names)
    joiner.is_paused = True
    answer = await joiner.answer(BOB, GetPiece(dataset.root, PIECES, 0))
    assert isinstance(answer, Refused)
    assert "this node is paused" in str(answer)


@pytest.mark.asyncio
async def test_after_a_restart_it_is_in_the_home(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    first = await supply(tmp_path, peers=peers).get(named(dataset), peers.names)
    again = supply(tmp_path)  # which knows nobody
    assert await again.get(named(dataset), list) == first
    assert await again.standing(named(dataset), []) == DataStanding()


@pytest.mark.asyncio
async def test_two_runs_get_the_same_data_once(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, peers=peers)
    both = await asyncio.gather(*(joiner.get(named(dataset), peers.names) for _ in range(2)))
    assert both[0] == both[1]
    assert peers.pieces_of(ANNA) == 6


@pytest.mark.asyncio
async def test_other_data_of_the_persons_own_are_no_hindrance(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, write_texts(tmp_path / "other", seed=1), peers=peers)
    (path,) = await joiner.get(named(dataset), peers.names)
    assert dataset.digest.hex() in path


@pytest.mark.asyncio
async def test_the_persons_own_text_needs_nobody_and_may_change_later(
    tmp_path: Path, texts: Path, dataset: Dataset
) -> None:
    (path,) = await supply(tmp_path, texts).get(named(dataset), list)
    assert dataset.digest.hex() in path
    shutil.rmtree(texts)
    write_texts(texts, seed=5)
    assert await supply(tmp_path, texts).get(named(dataset), list) == (path,)


@pytest.mark.asyncio
async def test_text_that_no_run_is_about_is_given_to_nobody(tmp_path: Path, texts: Path, dataset: Dataset) -> None:
    """Even to who knows its name: a node's --data may be about a run that it has not joined yet."""
    node = supply(tmp_path, texts)
    other = packed(tmp_path, seed=1)
    peers = Peers(anna=honest(other))
    node.calls.call = peers.call
    await node.get(named(other), peers.names)
    assert isinstance(await node.answer(BOB, GetPiece(dataset.root, PIECES, 0)), Refused)
    assert not (tmp_path / "data" / dataset.digest.hex()).exists()


@pytest.mark.asyncio
async def test_text_that_changes_while_it_is_read_is_not_named(tmp_path: Path, texts: Path) -> None:
    founder = supply(tmp_path, texts)
    await founder._own_text(NO_COLUMNS)
    (texts / "new.txt").write_text("more")
    with pytest.raises(LocalError, match="has changed"):
        await founder.named(FILES)
    assert (await founder.named(FILES)).data.size > 0, "the next try sees the text as it is"


@pytest.mark.asyncio
async def test_more_than_the_limit_is_not_downloaded(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, peers=peers, limit=dataset.index.size - 1)
    with pytest.raises(LocalError, match="--data-limit"):
        await joiner.get(named(dataset), peers.names)
    refused = await joiner.standing(named(dataset), [ANNA])
    assert "--data-limit" in refused.problem
    assert refused.code == "data-too-large"
    assert not peers.asked
    at_the_limit = supply(tmp_path, peers=peers, limit=dataset.index.size)
    assert await at_the_limit.get(named(dataset), peers.names)


@pytest.mark.asyncio
async def test_a_manifest_without_pieces_needs_the_text_itself(tmp_path: Path, texts: Path, dataset: Dataset) -> None:
    spec = DataSpec(name="files", digest=dataset.digest.hex())
    with pytest.raises(LocalError, match="names no pieces"):
        await supply(tmp_path).get(spec, list)
    (path,) = await supply(tmp_path, texts).get(spec, list)
    assert path.startswith(str(tmp_path / "data"))
    with pytest.raises(LocalError, match="not that of the run"):
        await supply(tmp_path / "else", write_texts(tmp_path / "other", seed=1)).get(spec, list)


@pytest.mark.asyncio
async def test_it_is_known_before_joining_who_gives_how_much(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset), bob=lambda message: Refused("not here"))
    joiner = supply(tmp_path, peers=peers)
    assert await joiner.standing(named(dataset), [ANNA, BOB]) == DataStanding(dataset.index.size, 1)
    nobody = await joiner.standing(named(dataset), [BOB])
    assert "--data" in nobody.problem
    assert nobody.code == "data-nowhere"
    assert await joiner.standing(DataSpec(), []) == DataStanding()
    unnamed = await joiner.standing(DataSpec(name="files"), [])
    assert unnamed == DataStanding(problem="start this node with --data", code="data-missing")
    assert [await joiner.has(spec) for spec in (DataSpec(), named(dataset))] == [True, False]
    assert not (tmp_path / "data").exists()


@pytest.mark.asyncio
async def test_what_no_run_needs_is_forgotten(tmp_path: Path, dataset: Dataset) -> None:
    peers = Peers(anna=honest(dataset))
    joiner = supply(tmp_path, peers=peers)
    await joiner.get(named(dataset), peers.names)
    await joiner.forget(named(dataset))
    assert list((tmp_path / "data").iterdir()) == []
    assert isinstance(await joiner.answer(BOB, GetPiece(dataset.root, PIECES, 0)), Refused)
    assert await joiner.get(named(dataset), peers.names)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.asyncio
async def test_how_much_text_there_is(tmp_path: Path, texts: Path, dataset: Dataset, shares: bool) -> None:
    size, unnamed = dataset.index.size, DataSpec(name="files", digest=dataset.digest.hex())
    own = supply(tmp_path / "a", texts, shares=shares)
    assert [await own.size(each) for each in (FILES.data, unnamed, named(dataset), DataSpec())] == [size, size, size, 0]
    assert not list(tmp_path.glob("a/data/*")), "asking packs nothing"
    without = supply(tmp_path / "b", shares=shares)
    assert [await without.size(each) for each in (FILES.data, unnamed, named(dataset))] == [0, 0, size]
    await supply(tmp_path / "b", texts).named(FILES)
    assert await without.size(unnamed) == size, "it is in the home"
