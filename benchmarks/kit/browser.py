"""A headless Chromium for the programs that take pictures for the documents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # for containers: root, and a small /dev/shm
MOST = 250_000  # bytes of a picture


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, closed at the end; SystemExit with what to install if there is none."""
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium: `apt-get install chromium`")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise SystemExit("there is no playwright: `make install`") from error
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


def shoot(page: Page, picture: Path) -> None:
    """A picture of what the window shows; SystemExit if it is too large for a document."""
    page.screenshot(path=picture)
    size = picture.stat().st_size
    print(f"{picture}: {size:,} bytes")
    if size > MOST:
        raise SystemExit(f"{picture} has more than {MOST:,} bytes: show less")
