"""`shoal serve` and `shoal generate` of pictures on the command line: what means nothing for them is refused."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.node.base.exits import Exit
from shoal.node.client.cli import main
from tests.unit.serve.images.gallery_kit import write_gallery

Shoal = Callable[..., tuple[int, str]]


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Run the command in this process, but no server: exit code, and what was said on both streams."""

    async def served(*_: object) -> None:
        print("it would be served")

    monkeypatch.setattr("shoal.node.diffusion.server.serve", served)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_gallery(tmp_path / "g"))


FOR_TEXT = [("--tokenizer", "bytes"), ("--prior", "a"), ("--base", "7"), ("--mix", "pcb")]
FOR_PEERS = [("--prefer", "peers"), ("--prefer", "nobody"), ("--patience", "1")]
FOR_TEXT_WRITTEN = [("--max-tokens", "9"), ("--temperature", "0.8"), ("--top-p", "0.5"), ("--stop", "x")]


@pytest.mark.parametrize(("flag", "value"), [*FOR_TEXT, *FOR_PEERS, ("--slots", "32")])
def test_a_server_of_pictures_refuses_what_means_nothing(shoal: Shoal, folder: str, flag: str, value: str) -> None:
    code, said = shoal("serve", folder, flag, value)
    assert code != Exit.OK
    assert flag in said
    assert "not for the folder" in said or "for experts on text" in said
    assert "would be served" not in said


def test_a_server_of_pictures_takes_what_means_something(shoal: Shoal, folder: str) -> None:
    flags = ["--mix", "top-1", "--waiting", "9", "--name", "mine", "--threads", "1", "--device", "cpu", "--port", "0"]
    code, said = shoal("serve", folder, *flags, "--host", "127.0.0.1", "--api-key", "secret")
    assert (code, said) == (Exit.OK, "it would be served\n")


@pytest.mark.parametrize(("flag", "value"), [*FOR_TEXT, *FOR_PEERS, *FOR_TEXT_WRITTEN])
def test_painting_a_file_refuses_what_means_nothing(
    shoal: Shoal, folder: str, tmp_path: Path, flag: str, value: str
) -> None:
    code, said = shoal("generate", folder, "7", "--out", str(tmp_path / "7.png"), flag, value)
    assert code != Exit.OK
    assert flag in said
    assert not (tmp_path / "7.png").exists()


def test_what_the_environment_says_is_refused_too(
    shoal: Shoal, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_GENERATE_TEMPERATURE", "0.5")
    code, said = shoal("generate", folder, "7", "--out", str(tmp_path / "7.png"))
    assert (code, "--temperature" in said) == (Exit.USAGE, True)


def test_a_prompt_may_come_from_the_input(
    shoal: Shoal, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, prompt in (("a", "7"), ("b", "-")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a seven\n"))
        code, said = shoal("generate", folder, prompt, "--out", str(tmp_path / name), "--count", "2", "--device", "cpu")
        assert (code, said) == (Exit.OK, f"wrote {tmp_path / name}\n")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("flag", "value"), [("--count", "16"), ("--out", "7.png")])
def test_a_text_has_no_pictures_options(shoal: Shoal, tmp_path: Path, flag: str, value: str) -> None:
    code, said = shoal("generate", str(tmp_path), "Once", flag, value)
    assert code != Exit.OK
    assert f"{flag} is for experts on pictures" in said
