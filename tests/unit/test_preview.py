"""The preview before joining: all that the decision needs, on one screen; and the QR code of a link."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from shoal.dht.link import MAX_LINK, format_link
from shoal.node.api.answers import Preview
from shoal.node.api.present import show_preview
from shoal.node.base.options import NodeSettings
from shoal.node.base.qr import QUIET
from shoal.node.client.cli import run
from shoal.node.manifest.manifest import CodecSpec, DataSpec, Introduction, Manifest, load_manifest, parse_manifest
from shoal.node.manifest.method import MethodName
from shoal.node.run.introduction import data_in_words, describe
from shoal.node.run.preview import METHODS
from shoal.node.run.runs import within
from shoal.node.training.data.supply import DataStanding
from shoal.protocol.base.ids import PeerId
from tests.run_kit import id_of, unsigned

STDLIB = load_manifest(Path(__file__).parents[2] / "examples/stdlib.toml")
AUTHOR = PeerId("12D3KooWAuthor")
LINK = format_link(id_of(STDLIB, AUTHOR), ["/ip4/192.0.2.7/tcp/4101", "/ip4/192.0.2.8/tcp/4101"])


def described(
    manifest: Manifest = STDLIB, present: int = 4, round: int = 14, pace: float = 12.0, line: tuple[int, int] = (0, 0)
) -> Preview:
    found = Introduction(manifest, unsigned(manifest, AUTHOR), {}, present, round, pace)
    return describe(found, DataStanding(), line=line)


SMALL = STDLIB.model_copy(update={"codec": CodecSpec(scatter="int8", gather="int8")})  # results of 0.8 MiB


def line_of(capsys: pytest.CaptureFixture[str], manifest: Manifest = STDLIB, **more: Any) -> str:
    """What is said of this node's line."""
    show_preview(described(manifest, **more))
    return next((line for line in capsys.readouterr().out.splitlines() if line.startswith("line")), "")


def test_who_has_a_slow_line_is_told_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    slow = line_of(capsys, SMALL, pace=9.0, line=(125_000, 125_000))
    assert slow.endswith("and 11 s a round; rounds are faster: this node would hold them up, or be left out")
    assert line_of(capsys, line=(12_500_000, 12_500_000)).endswith("about 0.5 s to begin with, and 0.4 s a round")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ((125_000, 0), "takes at least 42 s a round; rounds are faster: this node would hold them up, or be left out"),
        ((0, 625_000), "takes about 19 s to begin with, and at least 8.4 s a round"),
        ((0, 12_500_000), "takes about 0.5 s to begin with, and at least 0.4 s a round"),
    ],
)
def test_what_is_known_of_one_way_is_said_as_well(
    line: tuple[int, int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line_of(capsys, line=line).endswith(words)


def test_the_results_that_are_made_meanwhile_are_part_of_what_there_is_to_begin_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A state of 6.6 MB, and 0.82 MB a round, over 125 kB a second."""
    for pace, seconds in ((0.0, 53), (60.0, 59), (12.0, 116)):
        assert f"takes about {seconds} s to begin with" in line_of(capsys, SMALL, pace=pace, line=(0, 125_000))


def test_who_would_never_get_there_is_told_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    """Members keep results for a joiner, but each takes its line longer than the next one is made in."""
    never = line_of(capsys, line=(125_000, 125_000))
    assert never.endswith("takes about 53 s for the state, and 26 s for a round's result: it would never catch up")
    slow = line_of(capsys, pace=600.0, line=(30_000, 30_000))
    assert slow.endswith("takes about 4 min for the state, longer than members keep it for a joiner")
    replicas = parse_manifest('name = "a"\n[method]\nname = "gossip"')
    assert "never" not in line_of(capsys, replicas, line=(125_000, 125_000)), "there are no results"


def test_owners_limits_count_as_the_line() -> None:
    settings = NodeSettings(home=Path(), max_down=20_000)
    assert within(settings, (0, 0)) == (0, 20_000)
    assert within(settings, (5, 5)) == (5, 5)
    assert within(settings, (50_000, 50_000)) == (50_000, 20_000)


def test_the_screen_says_what_is_run_and_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    show_preview(described())
    assert capsys.readouterr().out == SCREEN.format(run=id_of(STDLIB, AUTHOR).hex()[:8])


SCREEN = """\
stdlib, run {run}, signed by 12D3KooWAuthor

model    llama with 820,352 parameters: 4 layers of 128, 256 tokens, context 128
data     the sources of Python's standard library, which are here
method   diloco: 20 steps of 8 sequences alone, then an average; changes are sent in full
rounds   14 done, and no last one; 4 members; about one every 12 s
memory   about 890 MiB: 440 MiB for the node, 450 MiB to train, partly on a GPU if used
traffic  about 5.0 MiB a round, 35 GiB a day, each way; 6.3 MiB to begin with
"""


TENSORS = 'tensors = [{ names = ["w"], shapes = [[300, 8]] }]'
HF = f"""name = "a"
[model]
name = "hf"
config = '{{"model_type": "gpt2"}}'
context = 64
vocab = 300
{TENSORS}
"""
ADAPTERS = HF + f'frozen = 5000\nbase = "{"ab" * 32}"\n[model.lora]\nrank = 4\ntargets = ["q"]\n'
MODEL_WORDS = {
    HF: "model    gpt2 of transformers with 2,400 parameters: 300 tokens, context 64\n",
    ADAPTERS: "gpt2 of transformers: adapters of rank 4 with 2,400 parameters on 5,000 frozen parameters from weights "
    "abababab of your own (--weights), 300 tokens, context 64\n",
    ADAPTERS + 'base = "seed"\n': "on 5,000 frozen parameters from the run's seed, 300 tokens, context 64\n",
    f'name = "a"\n[model]\nname = "custom"\n{TENSORS}\n[data]\nname = "own"': "model    a script's own, of 2,400 "
    "parameters: who trains has the script",
}


@pytest.mark.parametrize("text", MODEL_WORDS, ids=["hf", "weights", "seed", "custom"])
def test_a_model_is_told_by_what_there_is_to_say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    show_preview(described(parse_manifest(text)))
    assert MODEL_WORDS[text] in capsys.readouterr().out


METHOD_WORDS = {
    "ddp": "ddp: one step together, by the average of what all make of 16 sequences; gradients are sent in full",
    "diloco-delayed": "20 steps of 16 sequences alone, while the average of the steps before is made; changes are sent",
    "diloco-eager": "is made, of which the own share counts at once; changes are sent in full",
    "co2": "alone, while the average of the weights before them is made; weights are sent in full",
    "streaming-diloco": "alone, in which each fragment of the model is averaged once, one after the other; "
    "changes are sent in 4 bits, the mean in full",
    "sparseloco": "then an average of the largest changes, the others wait for later rounds; "
    "they are sent sparsely, in about 1/4 bit, the mean in full",
    "noloco": "alone, in which each pulls and is pulled by one partner; changes and weights are sent in full",
    "gossip": "alone, in which each takes the average with one partner; weights are sent in full",
}


def test_there_are_words_for_each_method() -> None:
    assert tuple(sorted(METHODS)) == tuple(sorted(get_args(MethodName)))


@pytest.mark.parametrize("name", METHOD_WORDS)
def test_a_method_is_told_by_what_it_does(capsys: pytest.CaptureFixture[str], name: str) -> None:
    show_preview(described(parse_manifest(f'name = "a"\n[method]\nname = "{name}"')))
    assert METHOD_WORDS[name] in capsys.readouterr().out


FAMILY_SCREENS = {
    "experts.toml": """\
model    llama with 32,928 parameters: 2 layers of 32, 256 tokens, context 128
data     the sources of Python's standard library, which are here
method   experts: each part of the data by a peer alone, 50 steps of 8 sequences a round, and no average with the \
others; files of experts are sent, as weights in full
parts    4, of 1,000 steps each; 4 members
""",
    "digits_experts.toml": """\
model    flow with 365,952 parameters: 3 layers of 128, pictures of 8 x 8 pixels in 10 classes
data     scikit-learn's pictures of digits, which are here
method   experts: each part of the data by a peer alone, 50 steps of 128 pictures a round, and no average with the \
others; files of experts are sent, as weights in full
parts    9, of 600 steps each; 4 members
""",
}


@pytest.mark.parametrize("file", FAMILY_SCREENS)
def test_a_family_is_told_by_its_parts_and_by_what_it_learns_from(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    show_preview(described(load_manifest(Path(__file__).parents[2] / "examples" / file)))
    out = capsys.readouterr().out
    assert FAMILY_SCREENS[file] in out
    assert "traffic  none to train; files of experts, about " in out


def test_what_is_not_known_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = STDLIB.rounds.model_copy(update={"last": 2000})
    codec = STDLIB.codec.model_copy(update={"scatter": "int8"})
    show_preview(described(STDLIB.model_copy(update={"rounds": rounds, "codec": codec}), 1, 0, 0.0))
    out = capsys.readouterr().out
    assert "none of 2,000 done; 1 member\n" in out
    assert "sent in 8 bits, the mean in full\n" in out
    assert "a day" not in out


@pytest.mark.parametrize(("pace", "words"), [(0.5, "0.5 s"), (90, "90 s"), (600, "10 min"), (7200, "2 h")])
def test_a_pace_is_said_as_people_say_it(capsys: pytest.CaptureFixture[str], pace: float, words: str) -> None:
    show_preview(described(pace=pace))
    assert f"about one every {words}\n" in capsys.readouterr().out


def test_what_the_data_are_and_whether_they_are_here() -> None:
    named, own = DataSpec(name="files", digest="ab" * 32), DataSpec(name="files")
    assert data_in_words(DataSpec(), DataStanding()).endswith("which are here")
    assert data_in_words(named, DataStanding()) == "text files with the digest abababab, which are here"
    assert "48.0 MiB to download, which 2 members give" in data_in_words(named, DataStanding(48 << 20, 2))
    assert "which a member gives" in data_in_words(named, DataStanding(1 << 20, 1))
    assert data_in_words(own, DataStanding(problem="no")) == "text files of each member's own: no"


# -- the code -----------------------------------------------------------------------------------------------


def modules(lines: list[str]) -> list[str]:
    """The picture that a scanner sees: rows of dark (#) and light (.) modules."""
    upper, lower = {" ": "#", "▀": ".", "▄": "#", "█": "."}, {" ": "#", "▀": "#", "▄": ".", "█": "."}
    return ["".join(half[letter] for letter in line) for line in lines for half in (upper, lower)]


def test_a_code_has_a_light_margin_and_three_eyes() -> None:
    lines = run.qr_code(LINK)
    picture = modules(lines)[: len(lines[0])]  # it is square: what is below fills the last line
    assert {len(line) for line in lines} == {len(picture[0])}
    assert all(set(row) == {"."} for row in picture[:QUIET])
    assert all(row.startswith("..") and row.endswith("..") for row in picture)
    eye = ["#######", "#.....#", "#.###.#", "#.###.#", "#.###.#", "#.....#", "#######"]
    size = len(picture[0]) - 2 * QUIET
    for top, left in ((0, 0), (0, size - 7), (size - 7, 0)):
        found = [row[QUIET + left :][:7] for row in picture[QUIET + top :][:7]]
        assert found == eye


def test_the_longest_link_has_a_code_that_fits_a_wide_terminal() -> None:
    assert len(run.qr_code("shoal2" + "x" * (MAX_LINK - 6))[0]) <= 70


class Terminal(io.TextIOWrapper):
    """A screen of 80 columns."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.shown = io.BytesIO()
        super().__init__(self.shown, encoding)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.shown.getvalue().decode(self.encoding)


def shown(monkeypatch: pytest.MonkeyPatch, screen: io.TextIOWrapper, wanted: bool | None, columns: int = 80) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(
        "shoal.node.client.cli.run.shutil.get_terminal_size", lambda fallback=None: os.terminal_size((columns, 24))
    )
    run.show_qr(LINK, wanted)


def test_a_terminal_gets_a_code_in_colours_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    shown(monkeypatch, screen, None)
    lines = screen.text().splitlines()[1:]
    assert [line.removeprefix("\x1b[97;40m").removesuffix("\x1b[0m") for line in lines] == run.qr_code(LINK)
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    shown(monkeypatch, screen, True)
    assert screen.text().splitlines()[1:] == run.qr_code(LINK)


def test_there_is_no_code_where_it_is_not_wanted_or_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, wanted, columns in (
        (Terminal(), False, 80),
        (Terminal(), None, 30),
        (Terminal("ascii"), None, 80),
        (Terminal("ascii"), True, 80),
    ):
        shown(monkeypatch, screen, wanted, columns)
        assert screen.text() == ""
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    run.show_qr(LINK, None)
    assert file.getvalue() == ""
    run.show_qr(LINK, True)
    assert file.getvalue().splitlines()[1:] == run.qr_code(LINK)


def test_a_model_of_a_library_is_described_by_what_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    tensors = "[{ names = ['model.layers.#.w'], shapes = [[8, 8]], times = 2 }]"
    more = "lora = { targets = ['w'] }\nfrozen = 5000\nvocab = 300\n"
    config = "config = { model_type = 'gpt2' }"
    text = f"name = 'a'\n[model]\nname = 'hf'\n{config}\ntensors = {tensors}\n"
    show_preview(described(parse_manifest(text)))
    assert "gpt2 of transformers with 128 parameters: 0 tokens" in capsys.readouterr().out
    show_preview(described(parse_manifest(text + more)))
    words = " ".join(capsys.readouterr().out.split())
    assert "adapters of rank 8 with 128 parameters on 5,000 frozen parameters" in words
    assert "300 tokens, context 128" in words
