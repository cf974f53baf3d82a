"""What `shoal up` settles before anything starts: the manifest, the folder, which peer dies and which joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.base.options import UpOptions, UsageError
from shoal.node.base.room import AvailableMemory, Memory, NoRoom
from shoal.node.client.up.plan import (
    builtin_manifest,
    check_room,
    check_text,
    chosen_manifest,
    make_plan,
    prepare_folder,
    remove_folder,
    to_toml,
)
from shoal.node.manifest.manifest import parse_manifest
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.system.identity import Identity

ROOT = Path(__file__).parents[2]


def test_the_built_in_manifest_is_the_example() -> None:
    assert (ROOT / "node/client/up/stdlib.toml").read_bytes() == (ROOT / "examples" / "stdlib.toml").read_bytes()
    assert builtin_manifest().rounds.last is None
    assert builtin_manifest().rounds.min_members == 2


def test_the_options_fix_what_the_command_line_says() -> None:
    manifest = chosen_manifest(UpOptions(peers=5, rounds=9, seed=7))
    assert (manifest.rounds.start_members, manifest.rounds.last, manifest.seed) == (5, 9, 7)
    assert manifest.model == builtin_manifest().model
    assert (manifest.rounds.pace, builtin_manifest().rounds.pace) == ("steps", "deadline")


def test_the_same_seed_gives_the_same_keys(tmp_path: Path) -> None:
    def names(out: str, seed: int) -> list[PeerId]:
        plan = make_plan(UpOptions(), tmp_path, chosen_manifest(UpOptions(seed=seed)))
        homes = {peer: Home(tmp_path / out / peer) for peer in plan.peers}
        for peer, home in homes.items():
            plan.give_key(peer, home)
        return [Identity.load_or_create(home.identity_key).peer for home in homes.values()]

    ours, again, other = names("ours", 7), names("again", 7), names("other", 8)
    assert ours == again
    assert len({*ours, *other}) == 8


def test_own_text_is_named_by_its_digest(tmp_path: Path) -> None:
    manifest = chosen_manifest(UpOptions(data=(tmp_path,)), corpus="ab" * 32)
    assert (manifest.data.name, manifest.data.digest) == ("files", "ab" * 32)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my-book.txt", "my-book"),
        ("letters.v1/", "letters.v1"),
        ("Meine Bücher/", "Meine-B-cher"),
        ("letters/..", "data"),
        ("本.txt", "text"),
        (f"{'long' * 20}.txt", "long" * 16),
    ],
)
def test_a_run_about_own_text_is_named_after_it(tmp_path: Path, path: str, name: str) -> None:
    data = tmp_path / "data"
    (data / path.partition("/")[0]).mkdir(parents=True)
    if "/" not in path:
        (data / path).rmdir()
        (data / path).touch()
    assert chosen_manifest(UpOptions(data=(data / path, tmp_path))).name == name


def test_a_manifest_of_ones_own_keeps_its_name(tmp_path: Path) -> None:
    assert chosen_manifest(UpOptions(data=(tmp_path,), manifest=manifest_file(tmp_path, ""))).name == "mine"


def test_too_short_a_text_is_refused_with_how_much_is_needed(tmp_path: Path) -> None:
    manifest = chosen_manifest(UpOptions(data=(tmp_path,)))
    check_text(manifest, 129, 2)
    for sizes in ((128, 2), (129, 1)):
        with pytest.raises(LocalError, match="at least 129 and 2"):
            check_text(manifest, *sizes)


def test_own_text_is_read_as_the_manifest_says(tmp_path: Path) -> None:
    file = manifest_file(
        tmp_path, '[data]\nname = "files"\ntokenizer = "t.json"\nend_of_text = "<end>"\ncolumn = "text"\n'
    )
    data = chosen_manifest(UpOptions(data=(tmp_path,), manifest=file), corpus="ab" * 32).data
    assert (data.tokenizer, data.end_of_text, data.column, data.digest) == ("t.json", "<end>", "text", "ab" * 32)


def test_a_manifest_reads_back_as_the_same_run() -> None:
    manifest = chosen_manifest(UpOptions(rounds=9))
    assert parse_manifest(to_toml(manifest)) == manifest
    assert parse_manifest(to_toml(builtin_manifest())) == builtin_manifest()


def manifest_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "manifest.toml"
    path.write_text('name = "mine"\n' + text)
    return path


def test_a_manifest_about_own_text_needs_the_text(tmp_path: Path) -> None:
    options = UpOptions(manifest=manifest_file(tmp_path, '[data]\nname = "files"\n'))
    with pytest.raises(UsageError, match="--data"):
        chosen_manifest(options)


def test_a_swarm_that_would_wait_for_ever_is_refused(tmp_path: Path) -> None:
    path = manifest_file(tmp_path, "[rounds]\nmin_members = 4\n")
    with pytest.raises(UsageError, match="use --peers 5 or more"):
        chosen_manifest(UpOptions(manifest=path))
    assert chosen_manifest(UpOptions(manifest=path, kill_at=None)).rounds.min_members == 4


def test_the_last_founder_dies_and_a_new_name_comes(tmp_path: Path) -> None:
    plan = make_plan(UpOptions(), tmp_path, builtin_manifest())
    assert (plan.peers[0], plan.victim, plan.newcomer) == ("peer-1", "peer-4", "peer-5")
    quiet = make_plan(UpOptions(kill_at=None, join_at=None), tmp_path, builtin_manifest())
    assert quiet.victim is quiet.newcomer is None


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, before = prepare_folder(None)
    assert before == tmp_path
    (first / "metrics.jsonl").touch()
    second, before = prepare_folder(None)
    assert before == tmp_path / "runs"
    assert first != second
    assert first.parent == second.parent == tmp_path / "runs"
    with pytest.raises(UsageError, match="is not empty"):
        prepare_folder(first)
    with pytest.raises(UsageError, match="cannot be used"):
        prepare_folder(first / "metrics.jsonl" / "below")


@pytest.mark.parametrize("there", [".", "a", "a/b"])
def test_a_folder_in_which_nothing_has_begun_is_as_it_was(there: str, tmp_path: Path) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    out, before = prepare_folder(tmp_path / "a/b")
    assert before == tmp_path / there
    (out / "logs").mkdir()
    (out / "logs" / "fork-server.log").touch()
    remove_folder(out, before)
    assert (tmp_path / there).is_dir()
    assert [*(tmp_path / there).iterdir()] == []


def test_what_others_have_put_beside_it_stays(tmp_path: Path) -> None:
    out, before = prepare_folder(tmp_path / "a" / "b")
    other = tmp_path / "a" / "c"
    other.mkdir()
    remove_folder(out, before)
    assert [*(tmp_path / "a").iterdir()] == [other]


def test_the_text_of_all_peers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.client.up.plan.available_memory", lambda: AvailableMemory(Memory(8 << 30, 6 << 30)))
    options = UpOptions(peers=4, data=(ROOT / "docs",))
    manifest = chosen_manifest(options, corpus="ab" * 32)
    check_room(manifest, options)
    check_room(manifest, options, text=100 << 20)
    with pytest.raises(
        NoRoom, match=r"4 of them take .* What would fit: the same with --peers 3, .* a text of at most"
    ):
        check_room(manifest, options, text=500 << 20)
