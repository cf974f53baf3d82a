"""The programs that take the documents' pictures say what they lack before they start anything."""

from __future__ import annotations

import sys

import page_pictures
import pictures
import pytest
from kit import browser


@pytest.mark.parametrize("program", [page_pictures, pictures], ids=["page", "both"])
def test_without_chromium_nothing_is_started(monkeypatch: pytest.MonkeyPatch, program: object) -> None:
    def started(*_: object, **__: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(browser, "CHROMIUM", None)
    monkeypatch.setattr(sys, "argv", ["pictures.py"])
    monkeypatch.setattr("subprocess.Popen", started)
    with pytest.raises(SystemExit, match="there is no Chromium: `apt-get install chromium`"):
        program.main()  # type: ignore[attr-defined]
