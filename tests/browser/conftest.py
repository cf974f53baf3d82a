"""The browser that all tests of this tier share; without one the tests say what is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.kit import CHROMIUM
from tests.tiers import requires

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # for containers: root, and a small /dev/shm

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")  # playwright keeps an event loop running in this thread: no other test may see that
def browser() -> Iterator[Browser]:
    requires("browser", CHROMIUM, "there is no Chromium: `apt-get install chromium`")
    requires("browser", importlib.util.find_spec("playwright"), "there is no playwright: `make install`")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except Error as error:
            requires("browser", False, f"Chromium does not start: {error.message.splitlines()[0]}")
        yield launched
        launched.close()
