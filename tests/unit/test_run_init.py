"""`shoal run init`: manifests to begin with, that say what their keys mean and are valid as they are."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.node import create
from shoal.node.base.exits import Exit
from shoal.node.base.keys import help_of
from shoal.node.client.cli import main
from shoal.node.manifest.manifest import Manifest, load_manifest, parse_manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.manifest.starting import PURPOSES, manifest_for, next_command
from tests.hf_kit import TABLE
from tests.unit.disk_kit import fill_disk
from tests.unit.test_docs import unknown_words

Init = Callable[..., tuple[int, str, str]]


@pytest.fixture
def init(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Init:
    """Run `shoal run init` in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", "run", "init", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_without_a_purpose_all_are_listed_with_a_line_each(init: Init) -> None:
    code, out, err = init()
    assert (code, err) == (Exit.OK, "")
    *lines, empty, command = out.splitlines()
    assert [line.split()[0] for line in lines] == list(PURPOSES) == ["text", "lora", "script", "experts"]
    assert [line.split(None, 1)[1] for line in lines] == [each.about for each in PURPOSES.values()]
    assert (empty, command) == ("", "shoal run init text")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_manifest_is_written_and_the_next_command_comes_last(init: Init, purpose: str) -> None:
    code, out, err = init(purpose)
    assert (code, err) == (Exit.OK, "")
    written = Path(f"{purpose}.toml").read_text(encoding="utf-8")
    assert written == manifest_for(purpose, f"{purpose}.toml")
    command = next_command(purpose, f"{purpose}.toml")
    assert out.splitlines() == [f"wrote {purpose}.toml; change in it what you like, and then:", command]
    assert written.splitlines()[-1] == f"#     {command}"


def test_a_file_that_is_there_is_kept_unless_it_is_forced(init: Init) -> None:
    Path("mine.toml").write_text("precious", encoding="utf-8")
    code, out, err = init("text", "mine.toml")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "shoal: mine.toml is there already: give another name, or --force to overwrite it [already-there]\n"
    assert Path("mine.toml").read_text(encoding="utf-8") == "precious"
    assert init("text", "mine.toml", "--force")[0] == Exit.OK
    assert load_manifest(Path("mine.toml")).name == "text"


def test_a_forced_write_that_fails_leaves_the_file_that_was_there(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text("precious", encoding="utf-8")
    Path("link.toml").symlink_to("mine.toml")
    fill_disk(monkeypatch)
    for name in ("mine.toml", "link.toml"):
        code, out, err = init("text", name, "--force")
        assert (code, out) == (Exit.FAILED, "")
        assert "the disk is full" in err
        assert sorted(path.name for path in Path().iterdir()) == ["link.toml", "mine.toml"]
        assert Path("mine.toml").read_text(encoding="utf-8") == "precious"


def test_a_forced_write_goes_where_a_link_leads(init: Init) -> None:
    Path("mine.toml").write_text("precious", encoding="utf-8")
    Path("link.toml").symlink_to("mine.toml")
    assert init("text", "link.toml", "--force")[0] == Exit.OK
    assert Path("link.toml").is_symlink()
    assert load_manifest(Path("mine.toml")).name == "text"


def test_a_purpose_that_does_not_exist_is_2_and_names_those_that_do(init: Init) -> None:
    code, out, err = init("txet")
    assert (code, out) == (Exit.USAGE, "")
    purposes = "text, lora, script, experts"
    assert err == f"shoal: there is no manifest for 'txet'; the purposes are {purposes} [unknown-name]\n"
    assert list(Path().iterdir()) == []


def test_a_file_name_with_spaces_is_one_word_of_the_command(init: Init) -> None:
    assert init("text", "my run.toml")[1].endswith("shoal run create 'my run.toml'\n")


@pytest.mark.parametrize("purpose", PURPOSES)
def test_the_next_commands_and_their_flags_exist(purpose: str) -> None:
    commands = next_command(purpose, "run.toml").split(" && ")
    assert [(each, wrong) for each in commands if each.startswith("shoal") and (wrong := unknown_words(each))] == []


# -- what is in them ----------------------------------------------------------------------------------------

EXAMPLE = re.compile(r"(?m)^# (\w+ = )")  # a key that is left out


def loaded(purpose: str, folder: Path, with_examples: bool = False) -> Manifest:
    """The manifest as it is written, or with the examples of keys that are left out."""
    text = manifest_for(purpose, "run.toml")
    if with_examples:
        text, count = EXAMPLE.subn(r"\1", text)
        assert count > 0
    (folder / "run.toml").write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(TABLE), encoding="utf-8")
    return load_manifest(folder / "run.toml")


def test_text_is_the_built_in_model_on_files(tmp_path: Path) -> None:
    assert loaded("text", tmp_path) == parse_manifest('name = "text"\n[data]\nname = "files"\n[rounds]\nlast = 500')
    data = loaded("text", tmp_path, with_examples=True).data
    assert (data.tokenizer, data.column) == ("tokenizer.json", "text")


def test_lora_has_adapters_on_the_config_beside_it(tmp_path: Path) -> None:
    manifest = loaded("lora", tmp_path)
    assert isinstance(manifest.model, HfSpec)
    assert manifest.model.table == TABLE
    assert manifest.model.lora is not None
    assert (manifest.model.lora.targets, manifest.model.lora.base) == (("q_proj", "v_proj"), "weights")
    assert manifest.data.tokenizer == "tokenizer.json"
    assert loaded("lora", tmp_path, with_examples=True).data.end_of_text == "<|endoftext|>"


def test_a_scripts_tables_are_what_create_takes(tmp_path: Path) -> None:
    tables = tomllib.loads(manifest_for("script", "run.toml"))
    assert create(**tables).id == "", "nothing is created before `wrap`"
    model = {"name": "custom", "tensors": ({"names": ("weight",), "shapes": ((2, 3),)},)}
    manifest = Manifest.model_validate({**tables, "model": model, "data": {"name": "own"}})
    assert (manifest.name, manifest.method.name, manifest.rounds.last) == ("script", "diloco", 500)


def test_experts_are_a_family_of_groups(tmp_path: Path) -> None:
    manifest = loaded("experts", tmp_path)
    assert manifest.experts is not None
    assert [part.name for part in manifest.experts.parts] == [f"cluster-{number}" for number in range(4)]
    assert manifest.data.name == "files"
    assert loaded("experts", tmp_path, with_examples=True).experts == manifest.experts


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_key_is_explained_by_the_schema_and_has_its_default(purpose: str) -> None:
    text = manifest_for(purpose, "run.toml")
    blocks = [block for block in text.split("\n\n")[1:-1] if not block.startswith("[")]
    assert len(blocks) > 10
    for block in blocks:
        *comments, assignment = block.splitlines()
        assert re.match(r"(# )?\w+ = .", assignment), block
        assert all(line.startswith("# ") for line in comments), block
        assert " ".join(line.removeprefix("# ") for line in comments).endswith(("by default.", "no default.")), block
        assert max(map(len, block.splitlines())) <= 120


def test_what_a_larger_number_changes_is_in_the_words_of_the_schema() -> None:
    help: Any = help_of(type(Manifest(name="a").method).model_fields["inner_steps"])
    text = " ".join(line.removeprefix("# ") for line in manifest_for("text", "run.toml").splitlines())
    assert f"{help} A whole number of steps, from 1 to 100,000; 20 by default. inner_steps = 20" in text
