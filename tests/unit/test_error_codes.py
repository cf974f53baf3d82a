"""Codes of errors and warnings: each that the source can give is explained, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base.codes import CODES, TABLES, Fault
from shoal.node.base.codes.document import document
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError, split_code, with_code
from tests.architecture import PACKAGES
from tests.error_codes import Found, codes_in, listed

ROOT = Path(__file__).parents[2]


def sources() -> dict[str, str]:
    """All code, by its place."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_the_codes_that_can_be_given_are_those_that_are_explained() -> None:
    """One test, as reading all of the code takes seconds."""
    found = codes_in(sources())
    assert not found.faults, "spell each code out, and give every warning one:\n" + "\n".join(found.faults)
    lacking = {code: listed(places) for code, places in found.codes.items() if code not in CODES}
    assert not lacking, f"without a row in node/base/codes: {lacking}"
    assert len(found.codes) > 150, "the scan misses codes"
    assert sorted(CODES.keys() - found.codes.keys()) == [], "explained, and never given"
    # that of its class blames the user, tells nothing and is not shown
    assert not found.bare, f"give yours a code of docs/errors.md, or a new one: {listed(found.bare)}"


def test_no_code_has_two_rows_and_every_row_says_what_happened() -> None:
    assert len(CODES) == sum(len(rows) for _, _, rows in TABLES)
    for code, row in CODES.items():
        assert row.what.endswith("."), code
        assert row.remedy or row.fault is not Fault.YOU, f"{code}: what should one do?"
        assert "|" not in row.what + row.remedy, "it would end a cell of the table"


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert text == document(), "run `python -m shoal.node.base.codes.document > docs/errors.md`"


def test_an_error_has_the_code_of_its_class_unless_it_has_its_own() -> None:
    assert (LocalError("x").code, LocalError("x", code="port-taken").code) == ("not-possible", "port-taken")
    assert (TransportError("x").code, TransportError("x", "silent").code) == ("failed", "silent")
    assert RemoteError("x", code="").code == "peer-blamed"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("it failed [port-taken]", ("it failed", "port-taken")),
        ("it failed", ("it failed", "")),
        ("a list [1, 2]", ("a list [1, 2]", "")),
        ("two\nlines [usage]", ("two\nlines", "usage")),
    ],
)
def test_a_code_is_told_from_the_sentence(words: str, parts: tuple[str, str]) -> None:
    assert split_code(words) == parts
    assert with_code(*parts) == words


# -- the scan itself: what it must notice ----------------------------------------------------------------------

BASE = """
class ShoalError(Exception):
    code: str
    def __init__(self, reason: str, code: str = "") -> None: ...
class Wrong(ShoalError):
    code = "wrong"
"""


def scanned(source: str) -> Found:
    head = "from shoal.base import Wrong\n"
    return codes_in({"base.py": BASE, "other.py": head + source})


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ('raise Wrong("x", code="a")', {"a"}),
        ('raise Wrong("x", "a")', {"a"}),
        ('raise Wrong("x", "a" if y else "b")', {"a", "b"}),
        ('A = "a"\nraise Wrong("x", A)', {"a"}),
        ('def f():\n    kind = "a"\n    raise Wrong("x", kind)', {"a"}),
        ('def tell(words, code: str): ...\ntell("x", "a")', {"a"}),
        ("class Note:\n    at: int\n    code: str\nNote(1, 'a')", {"a"}),
        ('log.info("x", extra={"code": "a"})', {"a"}),
        ('x = [{"code": "a", "words": "x"}]', {"a"}),
        ('CODES = {1: "a"}\nraise Wrong("x", CODES[1])', {"a"}),
        ('def _code_of(x):\n    return "a" if x else "b"\nraise Wrong("x", _code_of(1))', {"a", "b"}),
        ('class Own(Wrong):\n    code = "a"', {"a"}),
    ],
)
def test_the_scan_sees_a_code(source: str, codes: set[str]) -> None:
    found = scanned(source)
    assert found.codes.keys() == codes | {"wrong"}
    assert not found.faults


@pytest.mark.parametrize(("source", "bare"), [('LocalError("x")', 1), ('LocalError("x", "a")', 0), ("Wrong(x)", 0)])
def test_the_scan_sees_what_names_no_code(source: str, bare: int) -> None:
    assert len(scanned(f"raise {source}").bare) == bare


@pytest.mark.parametrize(
    "source",
    [
        'raise Wrong("x", f"a-{y}")',
        'raise Wrong("x", "a" + y)',
        'raise Wrong("x", code=made())',
        'log.warning("x")',
        'log.error("x %s", y)',
    ],
)
def test_the_scan_sees_what_it_cannot_tell(source: str) -> None:
    assert len(scanned(source).faults) == 1
