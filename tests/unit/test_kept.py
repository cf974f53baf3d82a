"""What a stopped node says of a vote that it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base.kept import NAMED, KeptVote, names


def test_what_is_marked_is_read_again(tmp_path: Path) -> None:
    vote = KeptVote(5, ("anna", "bert"))
    vote.write(tmp_path / "kept")
    assert KeptVote.read(tmp_path / "kept") == vote


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"voters": "many", "away": []}', '{"voters": 3}'])
def test_what_cannot_be_read_says_of_nobody_that_it_is_away(tmp_path: Path, content: str) -> None:
    (tmp_path / "kept").write_text(content)
    assert KeptVote.read(tmp_path / "kept") == KeptVote()
    assert KeptVote().words("stdlib") == "it keeps stdlib until it is started again"


def test_whoever_must_be_back_is_named() -> None:
    words = KeptVote(3, ("12D3KooWabcdef",)).words("stdlib")
    assert words == "stdlib waits until a quorum of its 3 voters is back: this node and abcdef are away"
    assert names([f"peer-{number}" for number in range(NAMED + 2)]).endswith(" and 2 more")
