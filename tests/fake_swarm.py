"""Fake nodes that commit rounds by the clock, for `shoal up`: the real command line, API, home and fault trigger.

    python tests/fake_swarm.py up ...       `shoal up` whose nodes are fakes
    python tests/fake_swarm.py node ...     one of them

They know each other through files in FAKE_WORLD. A round lasts FAKE_ROUND seconds; its members are those that had
joined when it began. FAKE_FLAW gives peer-2 a flaw: `crash` in round 2, `disagree` on the state, `deaf` to SIGTERM, a
run that has `failed` in round 2, or whose failure is `passing` with a later round.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROUND = float(os.environ.get("FAKE_ROUND", "0.4"))
CHUNKS = 12


class FakeNode:
    """Implements NodeService; the truth about the run lies in the files."""

    def __init__(self, settings: Any, name: str) -> None:
        from shoal.node.base.fault_injection import armed_trigger

        self.world, self.name = Path(os.environ["FAKE_WORLD"]), name
        self.flaw = os.environ.get("FAKE_FLAW") if name == "peer-2" else None
        self.bootstrap = settings.bootstrap
        self.joined_at = 0.0
        self.ended = asyncio.Event()
        self.trigger = armed_trigger(os.environ)
        if self.flaw == "deaf":
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)

    def say(self, name: str, text: str) -> None:
        """Write a file of the world; the others see all of it, or nothing."""
        draft = self.world / f"{name}.{self.name}"
        draft.write_text(text)
        draft.replace(self.world / name)

    def members(self, begin: float) -> list[str]:
        return [path.stem for path in self.world.glob("*.member") if float(path.read_text()) <= begin]

    def begin(self) -> float | None:
        """When round 1 began."""
        joined = sorted(float(path.read_text()) for path in self.world.glob("*.member"))
        start = self.manifest()["rounds"]["start_members"] if (self.world / "run.toml").exists() else 0
        return joined[start - 1] if 0 < start <= len(joined) else None

    def manifest(self) -> dict[str, Any]:
        import tomllib

        return tomllib.loads((self.world / "run.toml").read_text())

    def round(self) -> int:
        """The last committed round."""
        begin = self.begin()
        if begin is None or not self.joined_at:
            return 0
        done = int((time.time() - begin) / ROUND)
        return min(self.manifest()["rounds"]["last"], done)

    def status(self) -> dict[str, Any]:
        row = {
            "run": "ab" * 32,
            "name": "fake",
            "round": self.round(),
            "members": 3,
            "digest": "cd" * 32,
            "root": "ee" * 32,
        }
        row |= {"loss": 3.0, "step": 1, "samples": 100 * self.round(), "phase": "training", "bytes_sent": 7}
        if self.flaw in ("failed", "passing") and self.round() >= 1:
            is_failed = self.flaw == "failed" or self.round() < 4
            why = {"phase": "failed", "failure": "the disk is on fire", "may_be_opened_again": self.flaw == "passing"}
            row |= why if is_failed else {}
        runs = [row] if self.joined_at else []
        address = f"/ip4/127.0.0.1/tcp/1/p2p/{self.name}"
        return {"peer": self.name, "state": "CONNECTED", "addresses": [address], "runs": runs}

    def handlers(self) -> list[Any]:
        from shoal.node.api.operations import OPERATIONS

        return [each.handled_by(getattr(self, each.name)) for each in OPERATIONS if hasattr(self, each.name)]

    def peers(self) -> list[dict[str, Any]]:
        return []

    def rounds(self, run: str, last: int | None = None) -> list[dict[str, Any]]:
        return [self.record(number) for number in range(1, self.round() + 1)][-(last or 0) :]

    def timeline(self, run: str, round: int) -> dict[str, Any]:
        from shoal.node.api.errors import UnknownRound

        raise UnknownRound(f"nothing is known of round {round}")

    def record(self, number: int) -> dict[str, Any]:
        began = (self.begin() or 0) + (number - 1) * ROUND
        died = {path.stem: int(path.read_text()) for path in self.world.glob("*.dead")}
        members = [name for name in self.members(began) if died.get(name, number) >= number]
        counted = [name for name in members if died.get(name) != number]
        own = self.joined_at <= began  # else we only followed
        record: dict[str, Any] = {"round": number, "entry": number, "members": len(members)}
        record |= {"contributors": len(counted)}
        measured = {"digest": f"{number:064x}", "took_part": own, "seconds": 0.01, "bytes": 4000 * own}
        learned = {"tokens": 100 * own, "loss": 3.0 - number / 100, "round_samples": 100, "samples": 100 * number}
        phases = [{"phase": "training", "seconds": ROUND}]
        return record | measured | learned | {"applied_at": began + ROUND, "phases": phases, "waited_for": {}}

    async def create_run(
        self, manifest: str, train: bool, checkpoints: Sequence[str] = (), nonce: str = ""
    ) -> dict[str, Any]:
        self.say("run.toml", manifest)
        return await self.join_run("", train)

    async def join_run(self, link: str, train: bool, checkpoint: str = "") -> dict[str, Any]:
        self.joined_at = time.time()
        self.say(f"{self.name}.member", str(self.joined_at))
        return {"run": "ab" * 32, "name": "fake"}

    async def save_state(self, run: str, path: str, own: bool = False) -> dict[str, Any]:
        shutil.copy(os.environ["FAKE_STATE"], path)
        if self.flaw == "disagree":
            Path(path).write_bytes(Path(path).read_bytes() + b" ")
        return {"round": self.round(), "root": "ee" * 32}

    async def live(self) -> None:
        """Commit rounds by the clock, and die in the round of a fault."""
        while True:
            await asyncio.sleep(ROUND / 10)
            if self.flaw == "crash" and self.round() == 1:
                sys.exit("the disk is on fire")
            if self.trigger and self.round() == self.trigger.fault.round - 1 and self.joined_at:
                self.say(f"{self.name}.dead", str(self.trigger.fault.round))
                for sent in range(1, CHUNKS + 1):
                    self.trigger.moved(self.trigger.fault.round, sent, CHUNKS, "owner")


async def run_fake(settings: Any) -> None:
    """In the place of the daemon's `run`."""
    from shoal.node.base.home import DaemonInfo, Home
    from shoal.node.daemon.web.server import serve_api

    home, name = Home(settings.home), settings.home.parent.name
    node = FakeNode(settings, name)
    subprocess.Popen(["sleep", "600"])  # a worker, which outlives a daemon that is killed
    async with serve_api(node, home.token(), "127.0.0.1", 0) as (host, port):  # type: ignore[arg-type]
        home.write_daemon(DaemonInfo(os.getpid(), host, port, name))
        (node.world / f"{name}.args").write_text(json.dumps([*settings.bootstrap, *map(str, settings.data)]))
        await node.live()


def fake_argv(settings: Any) -> list[str]:
    """The command line of a fake, with the flags of a real node."""
    from shoal.node.client.launch import foreground_argv

    real = foreground_argv(settings)
    return [sys.executable, __file__, *real[real.index("shoal.node") + 1 :]]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from shoal.node.base.fork_server import ForkServer
    from shoal.node.client.cli import main
    from shoal.node.client.up import peers

    ForkServer.ready = lambda _: asyncio.sleep(0)  # type: ignore[method-assign, assignment]  # fakes are not forked
    peers.foreground_argv = fake_argv  # type: ignore[attr-defined]
    sys.modules["shoal.node.daemon.daemon"] = types.ModuleType("shoal.node.daemon.daemon")
    sys.modules["shoal.node.daemon.daemon"].run = run_fake  # type: ignore[attr-defined]
    main()
