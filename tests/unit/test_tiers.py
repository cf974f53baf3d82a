"""A tier that cannot run is skipped with its reason, or fails where it must run; it never passes silently."""

from __future__ import annotations

import pytest

from tests.tiers import requires


@pytest.mark.parametrize("asked", [None, "", "compose", "netlab, compose"])
def test_what_is_missing_is_skipped_and_says_why(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked is None:
        monkeypatch.delenv("SHOAL_REQUIRE", raising=False)
    else:
        monkeypatch.setenv("SHOAL_REQUIRE", asked)
    with pytest.raises(pytest.skip.Exception, match="TIER browser DOES NOT RUN: there is no chromium"):
        requires("browser", False, "there is no chromium")


@pytest.mark.parametrize("asked", ["browser", "compose,browser", " browser , "])
def test_what_must_run_fails(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_REQUIRE", asked)
    with pytest.raises(pytest.fail.Exception, match="asks for the tier browser, but there is no chromium"):
        requires("browser", None, "there is no chromium")
    requires("browser", "/usr/bin/chromium", "there is no chromium")


def test_a_misspelt_tier_is_an_error_and_not_one_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_REQUIRE", "browsers")
    with pytest.raises(ValueError, match="browsers"):
        requires("browser", True, "")
    with pytest.raises(ValueError, match="nothing"):
        requires("nothing", True, "")
