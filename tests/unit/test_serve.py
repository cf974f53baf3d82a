"""What a node gives peers that ask: each its share, nothing damaged, nothing that is not ours to give."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.node.training.data.pieces import PIECE, PIECES, TOP_BLOB, Blob
from shoal.node.training.data.store import Dataset
from shoal.node.training.data.supply import PER_PEER_RATE, READING, Serving
from shoal.protocol.base.ids import Digest
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused
from tests.unit.dataset_kit import ANNA, BOB, packed


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return packed(tmp_path)


@pytest.fixture
def serving(dataset: Dataset) -> Serving:
    serving = Serving()
    serving.offer(dataset)
    return serving


def question(dataset: Dataset, blob: Blob) -> GetPiece:
    return GetPiece(dataset.root, blob.level, blob.number)


@pytest.mark.asyncio
async def test_pieces_and_their_hashes_are_given(dataset: Dataset, serving: Serving) -> None:
    for blob in (TOP_BLOB, Blob(PIECES, 0), Blob(PIECES, 5)):
        answer = await serving.answer(ANNA, question(dataset, blob))
        assert answer == PieceIs(dataset.read(blob) or b"")


@pytest.mark.parametrize("blob", [Blob(PIECES, 6), Blob(PIECES, 2**62), Blob(2, 1), Blob(3, 0), Blob(2**62, 0)])
@pytest.mark.asyncio
async def test_what_is_not_there_is_refused(dataset: Dataset, serving: Serving, blob: Blob) -> None:
    assert isinstance(await serving.answer(ANNA, question(dataset, blob)), Refused)


@pytest.mark.asyncio
async def test_other_data_and_those_that_were_withdrawn_are_refused(dataset: Dataset, serving: Serving) -> None:
    assert isinstance(await serving.answer(ANNA, GetPiece(Digest(bytes(32)), *TOP_BLOB)), Refused)
    serving.withdraw(dataset.digest)
    assert isinstance(await serving.answer(ANNA, question(dataset, TOP_BLOB)), Refused)


@pytest.mark.asyncio
async def test_a_damaged_file_is_said_once_and_not_given(
    dataset: Dataset, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    assert dataset.path is not None
    with dataset.path.open("r+b") as file:
        file.write(b"\xff" * PIECE)
    for number in (0, 0, 1):
        assert isinstance(await serving.answer(ANNA, question(dataset, Blob(PIECES, number))), Refused)
    assert [getattr(record, "code", "") for record in caplog.records] == ["data-damaged"]


@pytest.mark.asyncio
async def test_who_asks_for_too_much_is_told_to_come_later_and_others_are_served(
    dataset: Dataset, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
    turns = [serving._turn(ANNA, 0.0) for _ in range(3 * int(PER_PEER_RATE[0]))]
    assert turns[0] == turns[int(PER_PEER_RATE[0]) - 1] == 0.0
    assert 1.0 < turns[-1] < 1.1, "who was sent away has lost nothing by asking"
    answer = await serving.answer(ANNA, question(dataset, TOP_BLOB))
    assert isinstance(answer, Later)
    assert 1000 <= answer.milliseconds <= 1100
    assert serving._turn(BOB, 0.0) < 1.0


@pytest.mark.asyncio
async def test_few_are_read_at_a_time(dataset: Dataset, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most = 0, 0

    async def read(*_: object) -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        return b""

    monkeypatch.setattr("shoal.node.training.data.supply.DISK", SimpleNamespace(run=read))
    await asyncio.gather(*(serving.answer(ANNA, question(dataset, TOP_BLOB)) for _ in range(30)))
    assert most == READING
