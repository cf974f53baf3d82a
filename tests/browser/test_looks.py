"""How the page looks in each state of a node, on a desk and on a phone, light and dark: whole, and within its window.

`SHOAL_SCREENSHOTS=FOLDER` keeps the pictures, to be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shoal.node.base.options import NodeSettings
from tests.browser.kit import DESK, PHONE, Witness, link, served
from tests.fake_service import RUN, FakeService

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKEN = "right-token"
NAMES = [f"12D3KooW{number:03}mBqUxvNpRgWzTcYsKdHfLaJeQ{number * 7919 % 997:03}Xy" for number in range(200)]
PHASES = ("training", "training", "matching", "reducing")


def busy(service: FakeService, members: int = 6) -> None:
    """A run that goes well, with so many other members."""
    now = time.time()
    service.news = {"members": members + 1, "round": 128, "last": 200, "seconds_left": 5040.0, "checkpoint": 120}
    service.news |= {"checkpoint_at": now - 560, "loss": 1.8342, "validation_loss": 1.912, "validation_round": 126}
    service.news |= {
        "samples": 268_435_456,
        "step": 2560,
        "device": "NVIDIA GeForce RTX 3060",
        "tokens_per_second": 41_250.0,
    }
    service.news |= {
        "worker_memory": 1_600 << 20,
        "device_memory": 5 << 30,
        "bytes_sent": 3 << 30,
        "bytes_received": 4 << 30,
    }
    service.settings_of_start = NodeSettings(Path("/"), max_up=2_500_000)
    (one,) = service.rounds(RUN)
    rows = [
        one
        | {"round": 114 + number, "applied_at": now - 70 * (14 - number), "members": members + 1, "seconds": 4.2}
        | {"contributors": members + 1 - (number == 9), "waited_for": {NAMES[2]: 2.5} if number % 5 == 0 else {}}
        | {"round_samples": 2_097_152, "bytes": 24 << 20}
        for number in range(15)
    ]
    service.rounds = lambda run, last=None: rows[-(last or 15) :]  # type: ignore[method-assign]
    paths = [("direct", "you dialled it"), ("punched", "its router let a hole be punched"), ("relayed", "by 7nBFdh")]
    peers = [
        {"peer": peer, "run": RUN, "round": 128, "phase": PHASES[number % 4], "loss": 1.8 + number % 9 / 50}
        | {"path": paths[number % 3][0], "reason": paths[number % 3][1], "rtt_ms": 8.0 + number % 60}
        | {"send_rate": 2.5e6, "receive_rate": 4e6 if number % 4 else None}
        for number, peer in enumerate(NAMES[:members])
    ]
    service.peers = lambda: peers  # type: ignore[method-assign]


def empty(service: FakeService) -> None:
    none = {**service.status(), "runs": [], "state": "SOLO", "warnings": []}
    service.status = lambda: none  # type: ignore[method-assign]
    service.peers = list  # type: ignore[method-assign]


IDLE = dict.fromkeys(("tokens_per_second", "device", "worker_memory", "device_memory", "seconds_left"))


def finished(service: FakeService) -> None:
    busy(service)
    service.news |= {**IDLE, "phase": "finished", "round": 200, "checkpoint": 200}


def broken(service: FakeService) -> None:
    busy(service)
    words = "cannot write /home/me/.local/share/shoal/runs/abab/vote: Input/output error: the disk is broken"
    service.news |= {**IDLE, "phase": "failed", "failure": words, "may_be_opened_again": False}


def paused(service: FakeService) -> None:
    busy(service)
    service.paused = "paused: you have asked for it, until 18:30"
    unknown = dict.fromkeys(("members", "loss", "validation_loss", "samples", "last", "checkpoint", "writes_text"))
    service.news |= {**IDLE, **unknown, "phase": "paused", "round": 0, "step": 0}
    service.peers = list  # type: ignore[method-assign]
    service.rounds = lambda run, last=None: []  # type: ignore[method-assign]


def split(service: FakeService) -> None:
    busy(service)
    service.state, service.evidence = "SPLIT", "stdlib: no quorum, as 4 of 7 voters are absent (aaaaaa, bbbbbb, cccccc)"


UNNAMED = """() => [...document.querySelectorAll("dialog :is(input:not([hidden]), textarea, select)")]
    .filter((control) => !control.labels.length).map((control) => control.outerHTML)"""
STATES: dict[str, Callable[[FakeService], None]] = {
    "busy": busy,
    "empty": empty,
    "finished": finished,
    "broken": broken,
    "paused": paused,
    "split": split,
    "crowd": lambda service: busy(service, 200),
}
LOOKS: dict[str, Any] = {
    "desk": {"size": DESK},
    "desk-dark": {"size": DESK, "scheme": "dark"},
    "phone": {"size": PHONE},
    "phone-dark": {"size": PHONE, "scheme": "dark"},
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_on_each_screen(browser: Browser, tmp_path: Path, state: str) -> None:
    service = FakeService()
    STATES[state](service)
    with served(service, TOKEN) as url:
        for name, look in LOOKS.items():
            witness = Witness(browser, url, **look)
            page = witness.page
            page.goto(link(url, TOKEN))
            page.wait_for_selector("#live.on")
            page.wait_for_selector("#empty:visible" if state == "empty" else ".run:visible")
            assert page.evaluate("document.documentElement.scrollWidth") <= look["size"]["width"]
            witness.shoot(tmp_path, f"{state}-{name}")
            witness.is_content()
            page.context.close()


def test_dialogs(browser: Browser, tmp_path: Path) -> None:
    service = FakeService()
    busy(service)
    with served(service, TOKEN) as url:
        for name, look in LOOKS.items():
            witness = Witness(browser, url, **look)
            page = witness.page
            page.goto(link(url, TOKEN))
            page.wait_for_selector("#live.on")
            for label in ("Leave", "Invite", "Write something", "Checkpoints", "Limits and hours", "Join a run"):
                page.click(f"button:visible:text-is('{label}…')")
                page.wait_for_selector("dialog[open]")
                assert page.evaluate(UNNAMED) == []
                witness.shoot(tmp_path, f"dialog-{label.split()[0].lower()}-{name}", whole=False)
                if label != "Join a run":
                    page.keyboard.press("Escape")
            page.fill("dialog input.mono", RUN)
            page.fill("#dialog-token-field", TOKEN)
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog h2:has-text('Join stdlib?')")
            witness.shoot(tmp_path, f"dialog-preview-{name}", whole=False)
            page.keyboard.press("Escape")
            page.context.close()
