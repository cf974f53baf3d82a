"""Make the README's pictures, docs/page.png and docs/report.png, from a real swarm: some minutes on two cores.

    python benchmarks/pictures.py                    # both
    python benchmarks/pictures.py --report FOLDER    # the report alone, of an earlier `shoal up --out FOLDER`

A `shoal up` on this machine trains, loses a peer and gains one. When it is nearly done a browser opens the page of one
of its nodes, and afterwards its report. It needs Chromium, and playwright (`make install`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kit.browser import chromium, shoot

from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.protocol.base.errors import ShoalError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from shoal.node.api.answers import RunRow

DOCS = Path(__file__).parent.parent / "docs"
WIDTH, HEIGHT = 1100, 900  # of the window, and so of a picture, in pixels
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
    with chromium() as browser:  # before a swarm is started: it may be missing
        if options.report:
            shoot_report(browser, options.report, options.out / "report.png")
        else:
            shoot_both(browser, options.out)


def shoot_both(browser: Browser, out: Path) -> None:
    """Pictures of a node's page and of the report, into the folder `out`, of a swarm that is started for that."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "swarm"
        with swarm(folder) as process:
            home = Home(folder / "peers" / "peer-1" / "home")
            wait_until(home, process, lambda run: (run["round"] or 0) >= SHOWN)
            shoot_page(browser, home, process, out / "page.png")
            if process.wait(PATIENCE) != 0:
                raise SystemExit("the swarm did not end well; its words are above")
        shoot_report(browser, folder, out / "report.png")


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


def shoot_page(browser: Browser, home: Home, process: subprocess.Popen[bytes], picture: Path) -> None:
    """A picture of the top of a node's page, once its curves are drawn, while the node trains."""
    page = window(browser)
    page.goto(Client(home).page(True))
    page.wait_for_selector("canvas")
    page.wait_for_timeout(2 * UPDATE)
    wait_until(home, process, lambda run: run["phase"] == "training")
    page.wait_for_timeout(UPDATE)
    shoot(page, picture)
    page.close()


def shoot_report(browser: Browser, folder: Path, picture: Path) -> None:
    """A picture of the top of a report."""
    page = window(browser)
    page.goto((folder / "report.html").resolve().as_uri())
    shoot(page, picture)
    page.close()


def window(browser: Browser) -> Page:
    """A new window of the pictures' size."""
    return browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")


if __name__ == "__main__":
    main()
