"""A headless Chromium that reports all errors of a page, and a node in a thread to look at."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from shoal.node.daemon.web.server import serve_api
from tests.fake_service import FakeService

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60.0  # seconds, for a busy machine
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


class Witness:
    """One page, and all messages of its console, its content policy and its network."""

    def __init__(self, browser: Browser, url: str, *, scheme: str = "light", size: dict[str, int] = DESK) -> None:
        self.url = url
        context = browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
        context.set_default_timeout(1000 * PATIENCE)
        context.add_init_script(REPORT_VIOLATIONS)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def until(self, condition: str, what: str, patience: float = PATIENCE) -> None:
        """Wait until an expression holds (playwright's own waiting needs `eval`, which our policy stops)."""
        deadline = time.monotonic() + patience
        while not self.page.evaluate(f"() => Boolean({condition})"):
            assert time.monotonic() < deadline, f"waited {patience:.0f} s for {what}: {self.page.inner_text('body')}"
            self.page.wait_for_timeout(50)

    def is_content(self, *expected: str) -> None:
        """Nothing went wrong but `expected` (parts of complaints), and no request left the node."""
        unexpected = [each for each in self.complaints if not any(part in each for part in expected)]
        assert unexpected == []
        assert self.page.evaluate("window.violations") == []
        foreign = [each for each in self.requests if not each.startswith((self.url, "data:"))]
        assert foreign == []

    def shoot(self, folder: Path, name: str, *, whole: bool = True) -> None:
        """A picture of the whole page, or of what is in its window, in `folder` or where SHOAL_SCREENSHOTS says."""
        folder = Path(os.environ.get("SHOAL_SCREENSHOTS", folder))
        self.page.screenshot(path=folder / f"{name}.png", full_page=whole)


def link(url: str, token: str) -> str:
    """A link that logs in."""
    made = Request(f"{url}v1/login/code", b"{}", {"Authorization": f"Bearer {token}"})
    with urlopen(made) as answer:
        return f"{url}#login={json.load(answer)['code']}"


@contextmanager
def served(service: FakeService, token: str, port: int = 0) -> Iterator[str]:
    """A node that only answers, in a thread of its own; its URL."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    listening: list[int] = []

    async def serve() -> None:
        async with serve_api(service, token, "127.0.0.1", port) as (_, actual):
            listening.append(actual)
            ready.set()
            await over.wait()

    def live() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{listening[0]}/"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
