"""A family that two real nodes train on tokenised text, fetched and served by every way of putting experts together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_families import are_finished, words_of
from tests.integration.test_serve import Server, end, start
from tests.unit.models.test_tokens import SENTENCES, WORDS, tokenizer

pytest.importorskip("openai", reason="openai IS NOT INSTALLED: see `make install`")

SEED = 11
FAMILY = f"""
name = "wordy"
seed = {SEED}
[model]
vocab = 64
dim = 16
layers = 1
heads = 2
kv_heads = 1
hidden = 24
context = 64
[data]
name = "files"
tokenizer = "tokenizer.json"
end_of_text = "<end>"
[method]
name = "experts"
inner_steps = 4
batch = 2
warmup_steps = 2
[experts]
steps = 16
publish_every = 2
[[experts.parts]]
name = "low"
only = ["low*"]
[[experts.parts]]
name = "high"
only = ["high*"]
"""
WAYS = {
    "full": {"low", "high"},
    "top-1": {"low", "high"},
    "average": {"average"},
    "pcb": {"pcb"},
}


def write_data(folder: Path) -> Path:
    """Texts of two domains, and the tokenizer of both."""
    folder.mkdir()
    tokenizer(folder)
    for number, sentence in enumerate(SENTENCES[:100]):
        (folder / f"{'low' if number % 2 else 'high'}{number:03}.txt").write_text(sentence)
    return folder


def fetched(children: Children, folder: Path) -> Path:
    """The experts, as `shoal experts fetch` writes them at the node that was given no data."""
    first = RealNode(folder / "first").start(children, data=(write_data(folder / "data"),))
    second = RealNode(folder / "second").start(children, first.address)
    until(lambda: second.client.status()["dht"]["servers"], "the second node to know a server", second.words)
    family = first.client.create_run(FAMILY, True)["run"]
    second.client.join_run(first.client.run_link(family)["link"], True)

    def all_done() -> bool:
        return are_finished(first, family) and are_finished(second, family)

    until(all_done, "both experts", lambda: words_of(first, second))
    command = [sys.executable, "-m", "shoal.node", "experts", "fetch", "wordy", str(folder / "out")]
    environ = os.environ | {"SHOAL_HOME": str(second.home.root)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def check_asked(server: Server, members: set[str]) -> None:
    client = server.client
    (model,) = client.models.list().data
    assert (model.id, {each["name"] for each in model.shoal["experts"]}) == ("wordy", members)
    asked: dict[str, Any] = {"model": "wordy", "prompt": "word1 word8", "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    assert whole.usage.prompt_tokens == 2, "the prompt is in the family's tokens"
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (12, "length")
    assert set(whole.choices[0].text.split()) <= {*WORDS, "<unk>"}
    assert set(whole.choices[0].shoal["experts"]) <= members
    parts = list(client.completions.create(**asked, extra_body={"ignore_eos": True}, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    ended = client.completions.create(**asked | {"max_tokens": 60, "temperature": 2.0, "n": 16})
    assert "stop" in {each.finish_reason for each in ended.choices}, "<end> ends a text"
    said = client.chat.completions.create(model="wordy", messages=[{"role": "user", "content": "word2"}], max_tokens=4)
    assert said.choices[0].message.role == "assistant"


@pytest.mark.slow
def test_a_family_is_trained_fetched_and_asked_in_every_way(children: Children, tmp_path: Path) -> None:
    folder = fetched(children, tmp_path)
    table = json.loads((folder / "ensemble.json").read_text())
    content = (folder / "tokenizer.json").read_bytes()
    assert content == (tmp_path / "data/tokenizer.json").read_bytes()
    assert table["tokens"] == {
        "kind": "tokenizer",
        "name": "tokenizer.json",
        "end_of_text": "<end>",
        "file": "tokenizer.json",
        "blake3": blake3(content).hexdigest(),
    }
    for mix, members in WAYS.items():
        base = ("--base", str(SEED)) if mix == "pcb" else ()
        process, server = start(folder, "--mix", mix, *base)
        try:
            check_asked(server, members)
        finally:
            assert end(process) == 0
