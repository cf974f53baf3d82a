"""Real worker processes under their supervisor: train, hand in, die, come back, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.node.base.fork_server import FORK_SERVER, ForkServer
from shoal.node.base.logs import MAX_LOG
from shoal.node.ipc.link import WorkerLink
from shoal.node.ipc.messages import Contribution, Finished, Progress, Train
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import Sizes
from shoal.node.ipc.worker_end import ALIKE
from shoal.node.manifest.manifest import DataSpec, Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.supervisor import liveness
from shoal.node.supervisor.process import BUILT_IN, WorkerSettings, worker_process
from shoal.node.supervisor.supervisor import WorkerSupervisor
from shoal.protocol.base.errors import LocalError

SIZE = 1000
PATIENCE = 120.0  # seconds; torch takes a few to import on a busy machine

# A user's own worker: each inner step takes 10 ms and adds 1 to every parameter; lane 99 crashes it, lane 98
# fails politely, lane 96 by a mistake, and before step 3 of lane 97 it waits for the hand-in.
SCRIPT = """
    import queue, sys, threading, time
    from pathlib import Path
    from shoal.node.ipc.link import WorkerLink
    from shoal.node.ipc.messages import Contribution, Failed, HandIn, Progress, Stop, Train

    link = WorkerLink.connect(Path(sys.argv[2]))
    while not isinstance(order := link.receive(), Stop):
        if not isinstance(order, Train):
            continue
        if order.lane == 99:
            sys.exit(7)
        if order.lane == 98:
            link.send(Failed(order.order, order.round, "no data"))
            continue
        if order.lane == 96:
            link.send(Failed(order.order, order.round, "IndexError: 32", False, True))
            continue
        start = link.vectors.agreed.array.copy()
        weights = start.copy()
        steps = 0
        while steps < 5:
            weights += 1
            steps += 1
            link.send(Progress(order.order, order.round, steps, 1.0 / steps, 10 * steps, 1000.0, 0, 1.0))
            if order.lane == 97 and steps == 2:
                assert link.receive() == HandIn(order.order)
                break
            time.sleep(0.01)
        link.vectors.contribution.array[:] = start - weights
        link.send(Contribution(order.order, order.round, steps, 10 * steps, 1.0))
"""


class Seen:
    """All reports of a supervisor."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.contributions: list[Contribution] = []
        self.lost: list[str] = []

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for `condition`, with a deadline."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{self.lost} {self.contributions} {self.progress[-1:]}"
            await asyncio.sleep(0.005)


def script_settings(folder: Path) -> WorkerSettings:
    script = folder / "script.py"
    write(script, SCRIPT)
    return WorkerSettings(
        folder=folder,
        log=folder / "worker.log",
        manifest=b"",
        sizes=Sizes(SIZE),
        threads=1,
        program=(sys.executable, str(script)),
        first_backoff=0.01,
        grace=0.3,
    )


def train(round: int, lane: int, steps: int = 8) -> Train:
    return Train(order=0, round=round, lane=lane, version=round - 1, steps=steps, is_fresh=True)


def write(path: Path, text: str) -> None:
    path.write_text(textwrap.dedent(text), encoding="utf-8")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@contextlib.asynccontextmanager
async def supervised(settings: WorkerSettings) -> AsyncIterator[tuple[WorkerSupervisor, Seen]]:
    seen = Seen()
    worker = WorkerSupervisor(
        settings,
        on_progress=seen.progress.append,
        on_contribution=seen.contributions.append,
        on_trained=lambda: None,
        on_lost=lambda ended: seen.lost.append(str(ended)),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield worker, seen
        finally:
            await worker.stop()


def vector(value: float) -> FloatArray:
    return np.full(SIZE, value, dtype=np.float32)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead but not yet waited for does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


@pytest.mark.asyncio
async def test_an_order_given_before_the_worker_is_there_is_carried_out(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 0), [vector(3)])
        await seen.until(lambda: seen.contributions)
        assert seen.contributions == [Contribution(1, 1, steps=5, tokens=50, loss=1.0)]
        assert (worker.contribution == -5).all()
        assert [each.step for each in seen.progress] == [1, 2, 3, 4, 5]
        await worker.train(train(2, 0), [vector(8)])
        await seen.until(lambda: len(seen.contributions) == 2)
        assert seen.contributions[1].round == 2
    assert not seen.lost


@pytest.mark.asyncio
async def test_a_hand_in_in_the_middle_gets_the_steps_done_so_far(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 97), [vector(0)])
        await seen.until(lambda: len(seen.progress) == 2)
        worker.hand_in(7)  # another round's
        worker.hand_in(1)
        await seen.until(lambda: seen.contributions)
        assert seen.contributions[0].steps == 2
        assert (worker.contribution == -2).all()


@pytest.mark.asyncio
async def test_a_killed_worker_is_replaced_and_repeats_the_order_from_the_committed_state(
    tmp_path: Path,
) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(4, 97), [vector(1)])
        await seen.until(lambda: len(seen.progress) == 2)
        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await seen.until(lambda: len(seen.progress) == 4)
        assert worker.pid != first
        worker.hand_in(4)
        await seen.until(lambda: seen.contributions)
        assert seen.contributions[0].round == 4
        assert (worker.contribution == -2).all()
        assert len(seen.lost) == 1
        assert "SIGKILL" in seen.lost[0]


@pytest.mark.asyncio
async def test_a_hand_in_survives_the_worker(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 97), [vector(0)])
        await seen.until(lambda: len(seen.progress) == 2)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        worker.hand_in(1)
        os.kill(worker.pid, signal.SIGKILL)
        await seen.until(lambda: seen.contributions)
        assert seen.contributions[0].steps == 2


@pytest.mark.asyncio
async def test_a_new_order_replaces_the_one_before_even_for_the_same_round(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 0), [vector(0)])
        await seen.until(lambda: seen.progress)
        await worker.train(train(1, 0), [vector(0)])
        await seen.until(lambda: seen.contributions)
        assert [each.order for each in seen.contributions] == [2]
        assert not seen.lost


@pytest.mark.asyncio
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives memory back")
async def test_parameters_are_unloaded_when_nobody_is_to_read_them(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 0), [vector(3)])
        await worker.unload()  # there is an order
        await seen.until(lambda: seen.contributions)
        assert (worker._vectors.agreed.array == 3).all()
        await worker.unload()
        assert not worker._vectors.agreed.array.any()
        await asyncio.gather(worker.train(train(2, 0), [vector(8)]), worker.unload())
        await seen.until(lambda: len(seen.contributions) == 2)
        assert (worker._vectors.agreed.array == 8).all()
    await worker.unload()  # when all is closed it is no mistake
    assert not seen.lost


@pytest.mark.asyncio
async def test_a_large_log_makes_way_when_a_worker_starts(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), program=("true",))
    for size, kept in ((MAX_LOG, False), (MAX_LOG + 1, True)):
        with settings.log.open("wb") as log:
            log.truncate(size)
        async with worker_process(settings, tmp_path / "socket") as (process, _):
            await process.wait()
        assert (tmp_path / "worker.log.1").exists() == kept
    assert settings.log.stat().st_size == 0


@pytest.mark.asyncio
async def test_a_worker_that_keeps_crashing_is_started_less_and_less_often(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 99), [vector(0)])
        await seen.until(lambda: len(seen.lost) == 4)
        assert all("exit status 7" in reason and "worker.log" in reason for reason in seen.lost)
        await worker.train(train(1, 0), [vector(0)])  # the daemon can still change its mind
        await seen.until(lambda: seen.contributions)


@pytest.mark.asyncio
async def test_a_failure_is_reported_in_the_workers_words(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(3, 98), [vector(0)])
        await seen.until(lambda: seen.lost)
        assert "failed in round 3: no data" in seen.lost[0]


@pytest.mark.asyncio
async def test_a_mistake_that_each_worker_makes_before_any_step_is_final(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(3, 96), [vector(0)])
        await seen.until(lambda: len(seen.lost) == ALIKE)
        assert seen.lost[0] == "the worker has failed in round 3: IndexError: 32"
        words = (
            f"the worker has failed in round 3: IndexError: 32; so did each of {ALIKE} workers before its first step"
        )
        assert seen.lost[-1] == words
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.until(lambda: len(seen.lost) > ALIKE or worker.pid), 0.5)


@pytest.mark.asyncio
async def test_a_mistake_after_a_step_is_made_again_as_often_as_it_comes(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 0), [vector(0)])
        await seen.until(lambda: seen.contributions)
        await worker.train(train(2, 96), [vector(0)])
        await seen.until(lambda: len(seen.lost) > ALIKE)
        await worker.train(train(2, 0), [vector(0)])
        await seen.until(lambda: len(seen.contributions) == 2)


@pytest.mark.asyncio
async def test_a_worker_that_cannot_even_start_leaves_its_words_in_the_log(tmp_path: Path) -> None:
    settings = script_settings(tmp_path)
    write(Path(settings.program[1]), "raise SystemExit('no torch here')")
    async with supervised(settings) as (_, seen):
        await seen.until(lambda: seen.lost)
        assert "ended with exit status 1: no torch here; its output is in" in seen.lost[0]


@pytest.fixture
def forked(forking: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the test are forked, as those of `shoal up`."""
    monkeypatch.setenv(FORK_SERVER, forking.path)


@pytest.mark.asyncio
@pytest.mark.usefixtures("forked")
async def test_a_worker_that_has_failed_for_good_is_not_started_again(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), manifest=Manifest(name="a").canonical(), program=BUILT_IN)
    settings = dataclasses.replace(settings, device="cuda:63")  # of so many no machine has
    async with supervised(settings) as (worker, seen):
        await seen.until(lambda: seen.lost)
        words = "the worker has failed: cuda:63 is not here: torch finds "
        assert seen.lost[0].startswith(words)
        assert "use --device cpu or auto" in seen.lost[0]
        assert "Traceback" not in read(settings.log)
        assert "worker: cuda:63 is not here" in read(settings.log)
        await worker.train(train(1, 0), [vector(0)])  # an order changes nothing
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.until(lambda: len(seen.lost) > 1 or worker.pid), 20 * settings.first_backoff)


@pytest.mark.asyncio
@pytest.mark.parametrize("keeps", [False, True])
async def test_a_worker_that_retires_ends_and_gives_its_memory_back(tmp_path: Path, keeps: bool) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 0), [vector(0)])
        await seen.until(lambda: seen.contributions)
        pid = worker.pid
        assert pid is not None
        await worker.retire(keeps)
        assert not is_alive(pid)
        assert worker.contribution.any() == keeps
        assert worker.copied_moments() is None
        assert (worker.pid, worker.device) == (None, None)
        assert not seen.lost
    assert worker.is_over


@pytest.mark.asyncio
async def test_who_has_retired_its_worker_has_another_one_when_there_is_more_to_train(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        for count in (1, 2):
            await worker.train(train(count, 0), [vector(0)])
            await seen.until(lambda count=count: len(seen.contributions) == count)  # type: ignore[misc]
            await worker.retire()
            assert worker.pid is None
            worker.wake()
        await seen.until(lambda: worker.pid is not None)
    assert not seen.lost


@pytest.mark.asyncio
async def test_a_worker_that_retires_before_it_was_begun_is_never_started(tmp_path: Path) -> None:
    worker, lost = (
        WorkerSupervisor(
            script_settings(tmp_path),
            on_progress=print,
            on_contribution=print,
            on_trained=print,
            on_lost=lambda ended: lost.append(str(ended)),
        ),
        list[str](),
    )
    async with asyncio.TaskGroup() as group:
        retiring = group.create_task(worker.retire())
        await asyncio.sleep(0)
        group.create_task(worker.run())
        await asyncio.wait_for(retiring, PATIENCE)
        assert not (tmp_path / "worker.log").exists()
        await worker.stop()
    assert lost == []


@pytest.mark.asyncio
async def test_a_worker_that_breaks_the_protocol_is_replaced(tmp_path: Path) -> None:
    settings = script_settings(tmp_path)
    script = Path(settings.program[1])
    good = read(script)
    write(script, good.replace("while not", "link.send(Stop())\nwhile not", 1))
    async with supervised(settings) as (worker, seen):
        await seen.until(lambda: seen.lost)
        assert "Stop is not a worker's to send" in seen.lost[0]
        write(script, good)
        await worker.train(train(1, 0), [vector(0)])
        await seen.until(lambda: seen.contributions)


@pytest.mark.asyncio
async def test_a_program_that_is_not_there_is_said_so_and_tried_again(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), program=(str(tmp_path / "nothing"),))
    async with supervised(settings) as (_, seen):
        await seen.until(lambda: len(seen.lost) == 2)
        assert "cannot be started" in seen.lost[0]


@pytest.mark.asyncio
async def test_an_error_in_the_daemons_own_callback_is_not_hidden_and_ends_the_worker(tmp_path: Path) -> None:
    def broken(_: Contribution) -> None:
        raise OSError("ours")

    worker = WorkerSupervisor(
        script_settings(tmp_path), on_progress=print, on_contribution=broken, on_trained=print, on_lost=print
    )

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            await worker.train(train(1, 0), [vector(0)])

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(run(), PATIENCE)
    assert caught.group_contains(OSError, match="ours")
    assert worker.pid is None


@pytest.mark.asyncio
async def test_a_stopped_worker_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 97), [vector(0)])
        await seen.until(lambda: len(seen.progress) == 2)
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not is_alive(pid)


@pytest.mark.asyncio
async def test_a_worker_that_hangs_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOOK", 0.02)
    monkeypatch.setattr(liveness, "HANG_LEAST", 1.0)
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(train(1, 97), [vector(0)])
        await seen.until(lambda: len(seen.progress) == 2)
        hung = worker.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        await worker.train(train(2, 97), [vector(0)])  # the others go on; that is no sign of life
        await seen.until(lambda: seen.lost)
        assert "made no step for" in seen.lost[0]
        assert not is_alive(hung)
        worker.hand_in(2)
        await seen.until(lambda: seen.contributions)
        assert (seen.contributions[0].round, seen.contributions[0].steps) == (2, 2)


@pytest.mark.asyncio
async def test_twenty_starts_leak_neither_descriptors_nor_memory(tmp_path: Path) -> None:
    async def live_once() -> None:
        async with supervised(script_settings(tmp_path)) as (worker, seen):
            await worker.train(train(1, 0), [vector(0)])
            await seen.until(lambda: seen.contributions)

    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps")
        shared = read(maps).count("memfd:shoal") if sys.platform == "linux" else 0
        return len(os.listdir("/dev/fd")), shared

    await live_once()
    before = held()
    for _ in range(20):
        await live_once()
    assert held() == before
    assert sorted(os.listdir(tmp_path)) == ["script.py", "worker.log"]


@pytest.mark.asyncio
async def test_a_worker_that_was_stopped_before_it_was_begun_holds_nothing(tmp_path: Path) -> None:
    def held() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = held()
    worker = WorkerSupervisor(
        script_settings(tmp_path),
        on_progress=print,
        on_contribution=print,
        on_trained=print,
        on_lost=lambda ended: pytest.fail(str(ended)),
    )
    await worker.stop()
    await worker.run()
    assert held() == before
    assert not list(tmp_path.glob("**/worker.sock"))


@pytest.mark.asyncio
async def test_an_answer_that_was_not_asked_for_breaks_the_protocol(tmp_path: Path) -> None:
    async with supervised(script_settings(tmp_path)) as (worker, seen):
        await worker.train(dataclasses.replace(train(1, 0), hand_in=False), [vector(0)])
        await seen.until(lambda: seen.lost)
        assert "broke the protocol: Contribution is not what its order asked for" in seen.lost[0]
        assert not seen.contributions


# -- the built-in worker ------------------------------------------------------------------------------------

TINY = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=16),
    data=DataSpec(name="files"),
    method=MethodSpec(inner_steps=8, batch=2, warmup_steps=0),
)


def built_in_settings(folder: Path, inner_steps: int = 8) -> tuple[WorkerSettings, FloatArray]:
    """Settings of a worker of the tiny model, and the model's first parameters."""
    from shoal.node.training.models.layout import Layout
    from shoal.node.training.models.registry import build

    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200, encoding="utf-8")
    method = TINY.method.model_copy(update={"inner_steps": inner_steps})
    manifest = TINY.model_copy(update={"method": method})
    model = build(manifest)
    theta = Layout.of(model).read(model).numpy()
    settings = WorkerSettings(
        folder=folder,
        log=folder / "worker.log",
        manifest=manifest.canonical(),
        sizes=Sizes(len(theta)),
        threads=1,
        device="cpu",
        data=(str(text),),
        program=BUILT_IN,
        first_backoff=0.01,
    )
    return settings, theta


@pytest.mark.asyncio
@pytest.mark.usefixtures("forked")
async def test_the_built_in_worker_trains_dies_and_trains_again(tmp_path: Path) -> None:
    settings, theta = built_in_settings(tmp_path)
    async with supervised(settings) as (worker, seen):
        await worker.train(train(1, 0), [theta])
        await seen.until(lambda: seen.contributions)
        done = seen.contributions[0]
        assert (done.round, done.steps, done.tokens) == (1, 8, 8 * 2 * 16)
        assert done.loss is not None
        assert 0 < done.loss < 10
        first = worker.contribution.copy()
        assert np.isfinite(first).all()
        assert first.any()

        await worker.train(train(2, 0), [theta])
        await seen.until(lambda: len(seen.contributions) == 2)
        second = worker.contribution.copy()
        assert worker.moments[0] == 16  # steps

    async with supervised(settings) as (worker, seen):
        await worker.train(train(1, 0), [theta])
        await seen.until(lambda: seen.contributions)
        assert worker.contribution.tobytes() == first.tobytes()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        await seen.until(lambda: seen.lost)
        await worker.train(train(2, 0), [theta])
        await seen.until(lambda: len(seen.contributions) == 2)
        assert worker.contribution.tobytes() == second.tobytes()  # as if nobody had died: its moments were kept


@pytest.mark.asyncio
async def test_the_built_in_worker_hands_in_what_it_has_and_ends_when_the_socket_closes(
    tmp_path: Path,
) -> None:
    settings, theta = built_in_settings(tmp_path, inner_steps=100_000)
    settings = dataclasses.replace(settings, grace=PATIENCE)  # nobody terminates it before it ends itself
    async with supervised(settings) as (worker, seen):
        await worker.train(train(1, 0, 100_000), [theta])
        await seen.until(lambda: len(seen.progress) >= 3)
        worker.hand_in(1)
        await seen.until(lambda: seen.contributions)
        assert 3 <= seen.contributions[0].steps < 100_000
        assert seen.contributions[0].tokens == seen.contributions[0].steps * 2 * 16

        await worker.train(train(2, 0, 100_000), [theta])
        await seen.until(lambda: seen.progress[-1].round == 2)
        async with asyncio.timeout(PATIENCE / 2):
            await worker.stop()


@pytest.mark.asyncio
async def test_the_built_in_worker_ends_when_its_daemon_is_killed(tmp_path: Path) -> None:
    settings, theta = built_in_settings(tmp_path, inner_steps=100_000)
    np.save(tmp_path / "theta.npy", theta)
    daemon = tmp_path / "daemon.py"
    write(daemon, DAEMON)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(daemon),
        str(tmp_path),
        str(settings.sizes.elements),
        settings.manifest.hex(),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        pid = int(await process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    await process.wait()
    deadline = time.monotonic() + PATIENCE
    while is_alive(pid):
        assert time.monotonic() < deadline, f"worker {pid} outlives its daemon"
        await asyncio.sleep(0.01)


# A daemon that prints its worker's pid once it trains.
DAEMON = """
    import asyncio, sys
    from pathlib import Path
    import numpy as np
    from shoal.node.ipc.messages import Train
    from shoal.node.supervisor.process import WorkerSettings
    from shoal.node.ipc.vectors import Sizes
    from shoal.node.supervisor.supervisor import WorkerSupervisor

    folder = Path(sys.argv[1])
    settings = WorkerSettings(folder=folder, log=folder / "worker.log", manifest=bytes.fromhex(sys.argv[3]),
        sizes=Sizes(int(sys.argv[2])), threads=1, device="cpu", data=(str(folder / "text.txt"),))

    async def main():
        seen = asyncio.Event()
        worker = WorkerSupervisor(settings, on_progress=lambda _: seen.set(), on_contribution=print, on_trained=print,
            on_lost=print)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            order = Train(0, 1, 0, 0, steps=100_000)
            await worker.train(order, [np.load(folder / "theta.npy")])
            await seen.wait()
            print(worker.pid, flush=True)

    asyncio.run(main())
"""


# -- a script of the user's, which nobody starts ------------------------------------------------------------


def run_script(folder: Path, socket: Path) -> subprocess.Popen[bytes]:
    """Start a script as a user would; its output goes to a file, so that no pipe fills up."""
    with (folder / "said").open("ab") as said:
        return subprocess.Popen([sys.executable, str(folder / "script.py"), "--socket", str(socket)], stderr=said)


async def listening(worker: WorkerSupervisor, seen: Seen) -> Path:
    await seen.until(lambda: worker.socket)
    assert worker.socket is not None
    return worker.socket


@pytest.mark.asyncio
async def test_a_script_comes_and_goes_and_gets_the_order_that_is_open(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), program=())
    async with supervised(settings) as (worker, seen):
        await worker.train(train(1, lane=97), [vector(3)])  # it waits for a hand-in that nobody asks for
        socket = await listening(worker, seen)
        first = run_script(tmp_path, socket)
        await seen.until(lambda: seen.progress)
        assert worker.pid == first.pid
        first.kill()
        first.wait()
        await seen.until(lambda: seen.lost)
        assert seen.lost == [f"the script (process {first.pid}) has gone"]
        seen.progress.clear()
        second = run_script(tmp_path, socket)
        await seen.until(lambda: len(seen.progress) == 2)
        worker.hand_in(1)
        await seen.until(lambda: seen.contributions)
        assert seen.contributions[0].steps == 2
    assert second.wait(PATIENCE) == 0  # Stop is the end of this one


@pytest.mark.asyncio
async def test_a_second_script_is_turned_away(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), program=())
    async with supervised(settings) as (worker, seen):
        await worker.train(train(1, lane=97), [vector(3)])
        socket = await listening(worker, seen)
        first = run_script(tmp_path, socket)
        await seen.until(lambda: seen.progress)
        with pytest.raises(LocalError, match=f"already has a worker, process {first.pid}"):
            await asyncio.to_thread(WorkerLink.connect, socket)
    assert first.wait(PATIENCE) != 0  # it had asked for a hand-in, and got Stop
    assert not seen.lost


@pytest.mark.asyncio
async def test_a_script_that_comes_after_the_end_is_told_of_it(tmp_path: Path) -> None:
    settings = dataclasses.replace(script_settings(tmp_path), program=())
    async with supervised(settings) as (worker, seen):
        socket = await listening(worker, seen)
        await worker.finish(Finished(4, 70), [vector(9)])
        await worker.unload()
        link = await asyncio.to_thread(WorkerLink.connect, socket)
        assert await asyncio.to_thread(link.receive) == Finished(4, 70)
        assert (link.vectors.agreed.array == 9).all()
        await worker.train(train(3, 0), [vector(3)])  # the run goes on on another branch
        order = await asyncio.to_thread(link.receive)
        assert isinstance(order, Train)
        assert order.round == 3
        link.close()
