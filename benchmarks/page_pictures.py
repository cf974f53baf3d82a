"""Take the pictures of the page that docs/monitoring.md shows: three nodes on this machine train, and Chromium looks.

    python benchmarks/page_pictures.py                  two minutes of training, then the pictures
    python benchmarks/page_pictures.py --seconds 600    longer curves

It needs Chromium and playwright, as the tests in tests/browser do. The pictures go to docs/page-*.png: the page on a
phone in the dark, and on a desk, where the model writes a text while it is trained.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kit.node import Node
from playwright.sync_api import Browser, Page, sync_playwright

from shoal.node.api.client import Client
from shoal.node.base.home import Home

DOCS = Path(__file__).parent.parent / "docs"
PEERS = 3
FIRST = 5  # rounds before the first picture, at least
PATIENCE = 900.0  # seconds, of a busy machine
DESK, PHONE = {"width": 1280, "height": 980}, {"width": 390, "height": 844}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # for containers: root, and a small /dev/shm
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
        first = stack.enter_context(Node(SHOAL_THREADS="1", SHOAL_CHECKPOINT_EVERY="5"))
        door = first.ask("status")["addresses"][0]
        others = [stack.enter_context(Node(SHOAL_THREADS="1", SHOAL_BOOTSTRAP=door)) for _ in range(PEERS - 1)]
        run = _found(first)
        for other in others:
            _until_done(other, "run", "join", run, "--yes")
        _until(lambda: first.round_of("stdlib") >= FIRST, "the first rounds")
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        time.sleep(seconds)  # what the curves show
        _take(browser, Client(Home(Path(first.environ["SHOAL_HOME"]))))
        browser.close()


def _found(node: Node) -> str:
    """Found the run; its id."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as manifest:
        manifest.write(MANIFEST)
        manifest.flush()
        return str(node.ask("run", "create", manifest.name)["run"])


def _take(browser: Browser, client: Client) -> None:
    _shoot(_page(browser, client, PHONE, "dark"), "page-phone")
    desk = _page(browser, client, DESK, "light")
    desk.click("text=Write something…")
    desk.fill("dialog textarea", "def __init__(self")
    desk.fill("#dialog-token-field", Home(Path(client.status()["home"])).token())
    desk.click("dialog button:text-is('Write')")
    desk.wait_for_selector("dialog [role=status]:has-text('Written with')", timeout=1000 * PATIENCE)
    _shoot(desk, "page-write")


def _page(browser: Browser, client: Client, size: dict[str, int], scheme: str) -> Page:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(client.page(with_login=True))
    page.wait_for_selector(".run .plot canvas")
    page.wait_for_selector("#live.on")
    return page


def _shoot(page: Page, name: str) -> None:
    path = DOCS / f"{name}.png"
    page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


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
