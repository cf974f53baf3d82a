"""Take the pictures of the page that docs/monitoring.md shows: three nodes on this machine train, and Chromium looks.

    python benchmarks/page_pictures.py                  two minutes of training, then the pictures
    python benchmarks/page_pictures.py --seconds 600    longer curves

It needs Chromium and playwright, as the tests in tests/browser do. The pictures go to docs/page-*.png: the page on a
phone in the dark, and on a desk, where the model writes a text while it is trained.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kit.browser import chromium, shoot
from kit.node import Node

from shoal.node.api.client import Client
from shoal.node.base.home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).parent.parent / "docs"
PEERS = 3
FIRST = 5  # rounds before the first picture, at least
PATIENCE = 900.0  # seconds, of a busy machine
DESK, PHONE = {"width": 1280, "height": 980}, {"width": 390, "height": 844}
MANIFEST = """
name = "stdlib"
[model]
dim = 96
layers = 3
heads = 4
kv_heads = 2
hidden = 256
context = 128
[method]
inner_steps = 10
batch = 8
[rounds]
min_members = 2
start_members = 3
last = 500
"""


def main() -> None:
    """Play, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of training before the pictures")
    seconds = parser.parse_args().seconds
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())  # before a node is started: it may be missing
        first = stack.enter_context(Node(SHOAL_THREADS="1", SHOAL_CHECKPOINT_EVERY="5"))
        door = first.ask("status")["addresses"][0]
        others = [stack.enter_context(Node(SHOAL_THREADS="1", SHOAL_BOOTSTRAP=door)) for _ in range(PEERS - 1)]
        run = _found(first)
        for other in others:
            _until_done(other, "run", "join", run, "--yes")
        _until(lambda: first.round_of("stdlib") >= FIRST, "the first rounds")
        time.sleep(seconds)  # what the curves show
        _take(browser, Client(Home(Path(first.environ["SHOAL_HOME"]))))


def _found(node: Node) -> str:
    """Found the run; its id."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as manifest:
        manifest.write(MANIFEST)
        manifest.flush()
        return str(node.ask("run", "create", manifest.name)["run"])


def _take(browser: Browser, client: Client) -> None:
    shoot(_page(browser, client, PHONE, "dark"), DOCS / "page-phone.png")
    desk = _page(browser, client, DESK, "light")
    desk.click("text=Write something…")
    desk.fill("dialog textarea", "def __init__(self")
    desk.fill("#dialog-token-field", Home(Path(client.status()["home"])).token())
    desk.click("dialog button:text-is('Write')")
    desk.wait_for_selector("dialog [role=status]:has-text('Written with')", timeout=1000 * PATIENCE)
    shoot(desk, DOCS / "page-write.png")


def _page(browser: Browser, client: Client, size: dict[str, int], scheme: str) -> Page:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(client.page(with_login=True))
    page.wait_for_selector(".run .plot canvas")
    page.wait_for_selector("#live.on")
    return page


def _until_done(node: Node, *words: str) -> None:
    _until(lambda: node.run(*words).returncode == 0, f"`shoal {' '.join(words)}`")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(1)


if __name__ == "__main__":
    main()
