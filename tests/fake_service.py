"""A fake of the daemon behind its HTTP API and command line, without network or training."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.dht.link import format_link
from shoal.node.api.errors import UnknownRound, find_run
from shoal.node.api.operations import OPERATIONS, Handler
from shoal.node.base.home import DaemonInfo, Home
from shoal.node.base.options import NodeSettings
from shoal.node.base.qr import qr_rows
from shoal.node.base.settings import find_setting, written
from shoal.node.daemon.diagnostics.node_checks import Facts, report
from shoal.node.daemon.own_settings import AT_ONCE
from shoal.node.daemon.web.server import serve_api
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.run.introduction import describe
from shoal.node.run.meters import Meters
from shoal.node.training.data.supply import DataStanding
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.net.system.version import shoal_version
from tests.fake_timeline import TIMELINE
from tests.run_kit import unsigned

PEER = "12D3KooWFakeFakeFakeFakeFakeFakeFakeFakeFakeFakeFake"
RUN = "ab" * 32
EVIL = PeerId("evil\x1b[2Jpeer")
MANIFEST = Manifest(name="stdlib")
ADDRESS = f"/ip4/127.0.0.1/tcp/4101/p2p/{PEER}"
LINK = format_link(RunId(bytes.fromhex(RUN)), ["/ip4/192.0.2.7/tcp/4101", "/ip4/192.0.2.8/tcp/4101"])
ENTERED = {"run": RUN, "name": "stdlib", "link": LINK}

CIRCUIT = f"/ip4/198.51.100.1/tcp/4101/p2p/{PEER[:-6]}7nBFdh/p2p-circuit"
STEP = {"event": "step", "at": 1.7e9, "seconds": 5.0, "again": 0.0, "times": 3}
STEPS = [
    STEP
    | {
        "live": False,
        "way": "dial",
        "where": "/ip4/203.0.113.7/tcp/4101",
        "code": "silent",
        "words": "no answer\x1b[2J",
    },
    STEP | {"live": True, "way": "relay", "where": CIRCUIT, "code": "ok", "words": "", "times": 1},
]
EXAMINED: list[dict[str, Any]] = [
    {"event": "peer", "peer": PEER, "path": None, "addresses": [{"address": CIRCUIT, "from": ["dht", "cache"]}]},
    *STEPS,
    {
        "event": "report",
        "peer": PEER,
        "addresses": [{"address": CIRCUIT, "from": ["dht", "cache"]}],
        "steps": STEPS,
        "path": "relayed",
        "reason": "relayed by 7nBFdh: its router gives each destination another port (symmetric)",
        "reason_code": "relay-symmetric",
        "rtt_ms": 41.5,
        "send_rate": 2.25e6,
        "receive_rate": 5.5e5,
        "rate_note": None,
        "here": {
            "reachability": "public",
            "nat": "public",
            "relays": [],
            "addresses": [],
            "ports": "TCP 4101 and 4102",
        },
        "there": {
            "addresses": ["/ip4/192.0.2.7/tcp/50123"],
            "path": "relayed",
            "reason_code": "evil\x1b[2J",
            "rtt_ms": None,
            "reachability": "nat",
            "nat": "symmetric",
            "relays": 2,
            "steps": [{"at": 1.7e9, "way": "meet", "where": PEER, "code": "no-place-there", "times": 2}],
        },
        "there_note": None,
        "verdict": {"code": "relayed-symmetric-there", "side": "theirs", "sentence": "slow.", "advice": "Forward."},
    },
]

PUBLISHED = {"round": 10, "steps": 40, "tokens": 2560, "loss": 3.25, "bytes": 71_232, "file": "ef" * 32}
UNPUBLISHED = {"peer": None, "run": None, "steps": 0, "of": 40, "loss": None, "finished": False, "published": None}
EXPERTS: list[dict[str, Any]] = [
    UNPUBLISHED
    | {
        "part": "net",
        "steps": 40,
        "loss": 3.25,
        "finished": True,
        "published": {**PUBLISHED, "author": PEER, "holders": 2, "here": True},
    },
    UNPUBLISHED | {"part": "text", "peer": f"{PEER[:-4]}\x1b[2J", "run": RUN, "steps": 8, "loss": 4.5},
]


class FakeService:
    """Implements NodeService; remembers the calls that would change something."""

    def __init__(self, on_stop: Callable[[], None] = lambda: None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.same: list[Any] = []  # runs of a manifest that is about to be founded
        self.state = "CONNECTED"
        self.evidence: str | None = None
        self.obstacle: str | None = None
        self.download: dict[str, int] | None = None
        self.news: dict[str, Any] = {}  # of the run
        self.not_open: list[Any] = []  # rows of runs that the node is not in
        self.limits: dict[str, Any] = {"max_up": 2_500_000, "max_down": None, "max_per_day": 20 * 10**9}
        self.paused: str | None = None
        self.has_left = True  # its runs, while it is paused
        self.unsaved: list[Any] = []
        self.ending = self.draining = False
        self.looks = 0  # at its status, while it is ending
        self.missing = ""  # why this machine does not have the data of other runs
        self.facts = Facts(reachability="public", found_at=("/ip4/192.0.2.9/tcp/4101",), peers=1)
        self.facts_before: list[Facts] = []  # what it finds out first
        self.settings_of_start: NodeSettings | None = None
        self.writes: Sequence[str] = (" sheep", " on", " the hill")  # what its model writes
        self.writes_no_more = ""  # why a text ends before its end
        self._on_stop = on_stop

    def handlers(self) -> list[Handler]:
        """A handler for each operation, which calls the method of that name as it is at the time of the call."""
        return [each.handled_by(_late(self, each.name)) for each in OPERATIONS if each.name != "login_code"]

    def status(self) -> Any:
        self.looks += self.ending
        run = {
            "run": RUN,
            "name": "stdlib",
            "round": 3,
            "first_round": 1,
            "is_creator": True,
            "members": 4,
            "digest": "cd" * 32,
            "loss": 1.25,
            "validation_loss": 1.5,
            "validation_round": 2,
            "tokens_per_second": 900.0,
            "utilisation": 0.875,
            "model_flops_utilization": 0.375,
        }
        run |= {"seconds_left": 840.0, "checkpoint": 2, "checkpoint_at": 1.7e9, "writes_text": True, "device": "cpu"}
        run |= {"step": 7, "samples": 4096, "phase": "training", "waiting_for": None, "branches": 1} | self.news
        return {
            "version": shoal_version(),
            "peer": PEER,
            "state": self.state,
            "evidence": self.evidence,
            "peers": 1,
            "obstacle": self.obstacle,
            "download": self.download,
            "paused": self.paused,
            "pause": self.pause_status(),
            "warnings": [{"code": "volume-nearly-used-up", "words": "more than 95% of it have\x1b[2J passed"}],
            "limits": {**self.limits, "used_today": 19_500_000_000, "goes_on_at": None},
            "traffic": {"sent": 1000, "received": 2000},
            "today": {"rounds": 3, "sent": 1000, "received": 2000},
            "day": {"sent": 1 << 30, "received": 1 << 30},
            "reachability": "public",
            "port_mapping": {
                "protocol": "upnp",
                "external": "203.0.113.7:4101",
                "error": None,
                "behind_another_nat": False,
                "pending": False,
            },
            "line": {"up": 1_250_000, "down": 0},
            "dht": {"servers": 12, "serves": True, "records": 30},
            "addresses": [ADDRESS],
            "home": "/home/me/.local/share/shoal",
            "memory": 64 << 20,
            "room": dict.fromkeys(("memory_free", "memory_total", "disk_free", "disk_total"), 16 << 30),
            "ending": self.ending,
            "draining": self.draining,
            "runs": [run, *self.not_open],
        }

    def settings(self) -> Any:
        return {"settings": written(self.settings_of_start) if self.settings_of_start is not None else {}}

    def peers(self) -> Any:
        rates = {"send_rate": 2.5e6, "receive_rate": None}
        why = {"reason": "you dialled\x1b[2J it", "reason_code": "dialled"}
        return [{"peer": "evil\x1b[2Jpeer", "run": RUN, "round": 3, "path": "direct", "rtt_ms": 0.52, **why, **rates}]

    async def examine(self, peer: str) -> AsyncGenerator[Any, None]:
        if peer == "nobody":
            raise LocalError("no peer 'nobody' is known here")
        for answer in EXAMINED:
            if peer == "lonely" and answer["event"] == "report":
                answer = answer | {"path": None, "there": None, "there_note": "it is gone"}
            if peer != "broken" or answer["event"] != "report":
                yield answer

    def netcheck(self) -> Any:
        return report(self.facts_before.pop(0) if self.facts_before else self.facts)

    def runs(self) -> Any:
        return self.status()["runs"]

    def run_details(self, run: str) -> Any:
        found = find_run(run, {RUN: "stdlib"})
        manifest = {"name": "stdlib", "model": {"dim": 128, "tied": True}}
        members = [{"peer": PEER, "round": 3}]
        return {"run": found, "name": "stdlib", "author": PEER, "manifest": manifest, "members": members} | {
            "rounds": self.rounds(run)
        }

    def rounds(self, run: str, last: int | None = None) -> Any:
        find_run(run, {RUN: "stdlib"})
        first = {"round": 1, "entry": 7, "members": 4, "contributors": 3, "digest": "ef" * 32, "took_part": True}
        first |= {
            "seconds": 0.25,
            "bytes": 4096,
            "resent": 0,
            "applied_at": 1.7e9,
            "round_samples": 2048,
            "samples": 8192,
            "called": False,
        }
        return [first | {"waited_for": {"evil<b>peer": 3.5}}]

    def timeline(self, run: str, round: int) -> Any:
        found = find_run(run, {RUN: "stdlib"})
        if round != TIMELINE["round"]:
            raise UnknownRound(f"nothing is known of round {round}")
        return {"run": found, "name": "stdlib", **TIMELINE}

    def meters(self) -> Any:
        meters = Meters()
        meters.committed(2048, 0.25, took_part=True)
        meters.voided()
        traffic = {"control": {"sent": 1, "received": 2}, "bulk": {"sent": 30, "received": 40}}
        rest = {"participants": 3, "last_commit": 1.7e9, "active": True, "lacks_quorum": False, "bytes": traffic}
        rest["bulk"] = {"direct": {"sent": 20, "received": 40}, "relayed": {"sent": 10, "received": 0}}
        return [{"run": RUN, **meters.as_json(), **rest}]

    async def create_run(self, manifest: str, train: bool, checkpoints: Sequence[str] = (), nonce: str = "") -> Any:
        if "typo" in manifest:
            raise LocalError("manifest: unknown key 'typo'; the nearest known key is 'model'")
        self.calls.append(("create", manifest, train, *checkpoints))
        return ENTERED

    async def lookup_runs(self, manifest: str) -> Any:
        return self.same

    def run_link(self, run: str) -> Any:
        find_run(run, {RUN: "stdlib"})
        return {**ENTERED, "qr": qr_rows(LINK)}

    async def checkpoints(self, run: str) -> Any:
        path = f"/home/me/.local/share/shoal/runs/{find_run(run, {RUN: 'stdlib'})}/checkpoints/round-"
        whole = {"path": f"{path}00000002", "problem": None, "run": RUN, "name": "stdlib", "round": 2}
        whole |= {"history": "cd" * 32, "root": "ef" * 32, "samples": 2048, "peer": PEER, "inner_steps": 40}
        return [{"path": f"{path}00000001", "problem": "damaged"}, {**whole, "saved_at": 1.7e9, "bytes": 1 << 20}]

    async def write_text(self, run: str, prompt: str, max_tokens: int | None = None) -> AsyncGenerator[Any, None]:
        find_run(run, {RUN: "stdlib"})
        self.calls.append(("write", prompt, max_tokens))
        for text in ("", *self.writes):
            yield {"text": text, "round": 3, "error": None}
        if self.writes_no_more:
            yield {"text": "", "round": 3, "error": self.writes_no_more}

    async def preview_run(self, link: str) -> Any:
        if link.startswith("bad0"):
            raise RemoteError("the manifest it sent is not the one that the run id names", PeerId("mallory"))
        if link.startswith("dead"):
            raise TransportError("no peer answered")
        if link.startswith("b09"):
            raise ZeroDivisionError("a bug")
        self.calls.append(("preview", link))
        found = Introduction(MANIFEST, unsigned(MANIFEST, EVIL), {}, 4, 14, 12.0)
        return describe(found, DataStanding(problem=self.missing, code="data-nowhere" if self.missing else ""))

    async def join_run(self, link: str, train: bool, checkpoint: str = "") -> Any:
        self.calls.append(("join", link, train, *([checkpoint] if checkpoint else [])))
        return ENTERED

    async def join_run_by_id(self, run: str, train: bool, checkpoint: str = "") -> Any:
        return await self.join_run(run, train, checkpoint)

    async def public_runs(self) -> Any:
        row = {"run": RUN, "name": "open\x1b[2J", "round": 9, "members": 4, "announced_by": 3}
        return [{**row, "link": LINK}]

    async def leave_run(self, run: str) -> Any:
        self.calls.append(("leave", find_run(run, {RUN: "stdlib"})))
        return {"run": RUN, "name": "stdlib"}

    def continue_run(self, run: str, sure: bool) -> Any:
        self.calls.append(("continue", find_run(run, {RUN: "stdlib"}), sure))
        why = "the run waits until its only voter is back; away: evil"
        answer: dict[str, Any] = {"run": RUN, "name": "stdlib", "round": 12, "keeps_replicas": False}
        return answer | {"why": why, "here": [PEER], "away": [EVIL]}

    def promote_member(self, run: str, peer: str) -> Any:
        self.calls.append(("promote", find_run(run, {RUN: "stdlib"}), peer))
        return {"run": RUN, "name": "stdlib"}

    def experts(self, family: str) -> Any:
        find_run(family, {RUN: "stdlib"})
        return EXPERTS

    async def fetch_experts(self, family: str, folder: str) -> Any:
        self.calls.append(("experts", family, folder))
        described = [{"name": "net", "file": "net.safetensors", "steps": 40}]
        return {"folder": folder, "experts": described, "missing": ["text"], "tokens": {"kind": "bytes"}}

    async def expert_sources(self, family: str) -> Any:
        find_run(family, {RUN: "stdlib"})
        return {"family": RUN, "name": "stdlib", "me": PEER, "socket": "", "manifest": "", "parts": []}

    async def save_state(self, run: str, path: str, own: bool = False) -> Any:
        self.calls.append(("save", run, path, *(["own"] if own else [])))
        return {"round": 3, "root": "cd" * 32}

    def pause_status(self) -> Any:
        why = [self.paused.removeprefix("paused: ")] if self.paused else []
        codes = ["asked"] if why else []
        times = {"since": None, "until": None}
        done = {"freed": bool(why), "left": bool(why) and self.has_left, "unsaved": self.unsaved}
        return {"paused": bool(why), "reasons": why, "codes": codes, **times, **done}

    def pause(self, seconds: float | None = None) -> Any:
        self.calls.append(("pause", seconds))
        self.paused = "paused: you have asked for it"
        return self.pause_status()

    def resume(self) -> Any:
        self.calls.append(("resume",))
        self.paused = None
        return self.pause_status()

    def change_settings(self, settings: dict[str, Any]) -> Any:
        for key, item in settings.items():
            if item is not None:
                find_setting(key).read(key, item, Path("/"))
        self.calls.append(("settings", settings))
        applied = [key for key in settings if key in AT_ONCE]
        later = [key for key in settings if key not in AT_ONCE]
        return {"settings": settings, "applied": applied, "at_next_start": later}

    def drain(self, within: float | None = None) -> Any:
        self.calls.append(("drain", within))
        self._on_stop()
        return {"stopping": True}

    def stop(self) -> Any:
        self.calls.append(("stop",))
        self._on_stop()
        return {"stopping": True}


def _late(service: object, name: str) -> Callable[..., Any]:
    return lambda **fields: getattr(service, name)(**fields)


def _be_stuck() -> None:
    while True:
        time.sleep(60)


async def run_fake(settings: NodeSettings) -> None:
    """Replaces the daemon's `run`. FAKE_NODE=fails: it cannot start; deaf: it does not stop when it is asked.

    FAKE_NODE=slow: it ends after three callers have seen that it is ending; forgets: it ends with an error; stuck: it
    does not hear SIGTERM, and its event loop gets stuck by SIGUSR1.
    """
    mood = os.environ.get("FAKE_NODE", "")
    if mood == "fails":
        raise ExceptionGroup("tasks", [LocalError("the identity key is of another planet")])
    asked = asyncio.Event()
    service = FakeService(on_stop=(lambda: None) if mood == "deaf" else asked.set)
    service.settings_of_start = settings
    home = Home(settings.home)
    async with serve_api(service, home.token(), settings.admin_host, settings.admin_port) as (host, port):
        home.write_daemon(DaemonInfo(os.getpid(), host, port, PEER, logs_here=home.is_log(2)))
        if mood in ("slow", "stuck"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if mood == "stuck":
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _be_stuck)
        await asked.wait()
        service.ending = True
        while mood == "slow" and service.looks < 3:
            await asyncio.sleep(0.01)
    if mood == "forgets":
        raise LocalError("the run stdlib did not end well: the disk is full")
