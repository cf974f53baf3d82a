"""Make the README's pictures, docs/page.png and docs/report.png, from a real swarm: some minutes on two cores.

    python benchmarks/pictures.py                    # both
    python benchmarks/pictures.py --report FOLDER    # the report alone, of an earlier `shoal up --out FOLDER`

A `shoal up` on this machine trains, loses a peer and gains one. When it is nearly done a browser opens the page of one
of its nodes, and afterwards its report. It needs Chromium, and playwright (`make install`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.protocol.base.errors import ShoalError

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from shoal.node.api.answers import RunRow

DOCS = Path(__file__).parent.parent / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTH, HEIGHT = 1100, 900  # of the window, and so of a picture, in pixels
MOST = 250_000  # bytes of a picture
ROUNDS = 16
SHOWN = 10  # rounds that are done when the page is shown: after the death in round 4 and the newcomer of round 6
PATIENCE = 1200.0  # seconds
UPDATE = 1200  # milliseconds, within which a page shows what has changed


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="show this report, and start no swarm")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="where the pictures go (docs/)")
    options = parser.parse_args()
    if options.report:
        shoot_report(options.report, options.out / "report.png")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "swarm"
        with swarm(folder) as process:
            home = Home(folder / "peers" / "peer-1" / "home")
            wait_until(home, process, lambda run: (run["round"] or 0) >= SHOWN)
            shoot_page(home, process, options.out / "page.png")
            if process.wait(PATIENCE) != 0:
                raise SystemExit("the swarm did not end well; its words are above")
        shoot_report(folder, options.out / "report.png")


@contextmanager
def swarm(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `shoal up` into `folder`, which is ended at the end."""
    up = ["up", "--rounds", str(ROUNDS), "--device", "cpu", "--out", str(folder)]
    process = subprocess.Popen([sys.executable, "-P", "-m", "shoal.node", *up], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_until(home: Home, process: subprocess.Popen[bytes], holds: Callable[[RunRow], bool]) -> None:
    """Wait until something holds for the run of a peer of the swarm."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(ShoalError):
            if any(map(holds, Client(home).runs())):
                return
        time.sleep(0.1)
    raise SystemExit("the swarm has ended, or hangs, before its page could be shown")


def shoot_page(home: Home, process: subprocess.Popen[bytes], picture: Path) -> None:
    """A picture of the top of a node's page, once its curves are drawn, while the node trains."""
    with browser() as page:
        page.goto(Client(home).page(True))
        page.wait_for_selector("canvas")
        page.wait_for_timeout(2 * UPDATE)
        wait_until(home, process, lambda run: run["phase"] == "training")
        page.wait_for_timeout(UPDATE)
        shoot(page, picture)


def shoot_report(folder: Path, picture: Path) -> None:
    """A picture of the top of a report."""
    with browser() as page:
        page.goto((folder / "report.html").resolve().as_uri())
        shoot(page, picture)


@contextmanager
def browser() -> Iterator[Page]:
    """A page in a headless Chromium."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("there is no Chromium: `apt-get install chromium`")
    with sync_playwright() as playwright:
        # flags for containers: root, and a small /dev/shm
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield launched.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        launched.close()


def shoot(page: Page, picture: Path) -> None:
    """A picture of what the window shows."""
    page.screenshot(path=picture)
    size = picture.stat().st_size
    print(f"{picture}: {size:,} bytes")
    if size > MOST:
        raise SystemExit(f"{picture} has more than {MOST:,} bytes: show less")


if __name__ == "__main__":
    main()
