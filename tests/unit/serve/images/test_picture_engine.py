"""Who is painted for: those who stay, with the experts that their call began with; nothing is left of the others."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch

from shoal.node.diffusion.engine import GeneratedPictures, PictureEngine, SamplingBatch, SamplingRequest
from shoal.node.diffusion.mixture import noise, sample_pictures
from shoal.node.diffusion.picture_source import PicturePanel, PictureSource
from shoal.node.inference.engine.engine import Stopping
from shoal.node.inference.served import ServeOptions
from shoal.protocol.base.errors import LocalError
from tests.unit.serve.images.gallery_kit import FLOW, Brush, write_gallery

CHOICES = ServeOptions(device="cpu", threads=1)
STEPS = 3
ALL = 1000  # steps

Test = Callable[[PictureSource, PictureEngine], Awaitable[None]]


def order(wanted: int, count: int, steps: int = STEPS) -> SamplingRequest:
    return SamplingRequest(wanted, count, seed=wanted, steps=steps, guidance=1.5)


def alone(panel: PicturePanel, wanted: SamplingRequest) -> torch.Tensor:
    """The pictures of an order, painted without a painter."""
    start = noise([(wanted.seed, number) for number in range(wanted.count)], panel.spec.context)
    return sample_pictures(
        panel.mixture, [wanted.label] * wanted.count, start, steps=wanted.steps, guidance=wanted.guidance
    )


def run(test: Test, folder: Path, waiting: int = 100) -> None:
    async def live() -> None:
        gallery = PictureSource(write_gallery(folder), CHOICES)
        painter = PictureEngine(gallery, waiting)
        try:
            async with asyncio.timeout(120):
                await test(gallery, painter)
        finally:
            await painter.stop()

    asyncio.run(live())


async def begun(painter: PictureEngine, wanted: SamplingRequest) -> asyncio.Task[GeneratedPictures]:
    """An order that is in the painter's hands."""
    before = painter.load()
    task = asyncio.create_task(painter.generate(wanted))
    while painter.load() == before:
        await asyncio.sleep(0)
    return task


def test_who_stays_has_the_same_pictures_whoever_leaves_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brush = Brush(monkeypatch)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        blocker = await begun(painter, order(0, 1, steps=1))
        await brush.at(1)
        first, second, third = [await begun(painter, order(each, each)) for each in (2, 3, 4)]
        brush.allow(1)
        await blocker
        await brush.at(2)
        assert (painter.load().busy, painter.load().waiting) == (9, 0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert painter.load().busy == 6
        brush.allow(ALL)
        for each, wanted in ((first, order(2, 2)), (third, order(4, 4))):
            assert torch.allclose((await each).pictures, alone(gallery.panel, wanted), atol=1e-5)
        assert brush.sizes == [1, 9, 6, 6]
        load = painter.load()
        assert (load.finished, load.broken, load.calls, load.steps) == (7, 3, 2, 22)

    run(test, tmp_path)


def test_those_who_come_and_go_while_one_waits_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        stays = await begun(painter, order(1, 1))
        await brush.at(1)
        for _ in range(500):
            gone = await begun(painter, order(2, 10))
            gone.cancel()
            await asyncio.wait([gone])
        assert painter.load().waiting == 0
        assert not painter._waiting, "they are held until the call ends"
        brush.allow(ALL)
        assert len((await stays).pictures) == 1
        assert brush.sizes == [1] * STEPS

    run(test, tmp_path)


def test_a_call_that_nobody_waits_for_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        gone = [await begun(painter, order(1, 64, steps=200))]
        await brush.at(1)
        gone.append(await begun(painter, order(2, 30, steps=200)))
        for each in gone:
            each.cancel()
        await asyncio.wait(gone)
        brush.allow(ALL)
        assert len((await painter.generate(order(3, 2))).pictures) == 2
        assert brush.sizes == [64, 2, 2, 2]
        assert (painter.load().finished, painter.load().broken, painter.load().busy) == (2, 64, 0)

    run(test, tmp_path)


def test_a_stop_ends_a_call_at_its_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        told = [await begun(painter, order(1, 64, steps=200))]
        await brush.at(1)
        told.append(await begun(painter, order(2, 5)))
        stopping = asyncio.create_task(painter.stop())
        await asyncio.sleep(0)
        brush.allow(ALL)
        await stopping
        for each in told:
            with pytest.raises(Stopping):
                await each
        with pytest.raises(Stopping):
            await painter.generate(order(3, 1))
        assert brush.sizes == [64]

    run(test, tmp_path)


def test_a_call_that_fails_is_told_to_those_in_it_and_the_next_one_is_painted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = SamplingBatch.step

    def failing(canvas: SamplingBatch) -> None:
        if canvas.count == 2:
            raise MemoryError
        step(canvas)

    monkeypatch.setattr(SamplingBatch, "step", failing)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        with pytest.raises(LocalError, match="MemoryError"):
            await painter.generate(order(1, 2))
        assert "the model failed" in caplog.text
        assert len((await painter.generate(order(1, 3))).pictures) == 3
        assert (painter.load().finished, painter.load().broken) == (3, 2)

    run(test, tmp_path)


def test_a_call_keeps_the_experts_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brush = Brush(monkeypatch)

    async def test(gallery: PictureSource, painter: PictureEngine) -> None:
        before = gallery.panel
        under_way = await begun(painter, order(7, 2))
        await brush.at(1)
        waits = await begun(painter, order(7, 2))
        write_gallery(tmp_path, (0, 2))
        assert (
            await asyncio.to_thread(gallery.look_again) == "experts: cluster-0, cluster-2, router; removed: cluster-1"
        )
        brush.allow(ALL)
        old, new = await under_way, await waits
        assert (old.version, new.version) == (before.version, gallery.panel.version)
        assert old.version != new.version
        assert torch.allclose(old.pictures, alone(before, order(7, 2)), atol=1e-6)
        assert torch.allclose(new.pictures, alone(gallery.panel, order(7, 2)), atol=1e-6)
        assert not torch.allclose(old.pictures, new.pictures, atol=1e-3)
        assert gallery.panel.mixture.experts[0] is before.mixture.experts[0], "what has not changed is not read again"

    run(test, tmp_path)


def test_a_bad_folder_leaves_the_old_one(tmp_path: Path) -> None:
    folder = write_gallery(tmp_path / "g")
    gallery = PictureSource(folder, CHOICES)
    before = gallery.panel
    larger = FLOW.model_copy(update={"side": 5})
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: write_gallery(folder, has_router=False), "0 routers"),
        (lambda: write_gallery(folder, (1,), has_router=False, flow=larger), "another size"),
        (lambda: (folder / "ensemble.json").write_text("{"), "no table of experts"),
        (lambda: shutil.rmtree(folder), "cannot read"),
    ]
    for damage, why in bad:
        damage()
        with pytest.raises(LocalError, match=why):
            gallery.look_again()
        assert gallery.panel is before
    write_gallery(folder, (0,))
    assert gallery.look_again().endswith("removed: cluster-1, cluster-2")
