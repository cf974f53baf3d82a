"""A run of a library's model that cannot be founded says why, and leaves nothing on the founder's disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.checkpoint.read import Checkpoint
from shoal.node.home import Home
from shoal.node.models import naming
from shoal.node.options import NodeSettings
from shoal.node.room import NoRoom
from shoal.node.run.introduction import Introduction
from shoal.node.run.remembered import PeerCache
from shoal.node.run.runs import Runs
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import Identity
from shoal.protocol.network import Network
from tests.hf_kit import CONFIG, TABLE, needs
from tests.unit.models.test_hf import BERT, manifest
from tests.unit.models.test_hf import founded as begun

needs("transformers")
needs("tokenizers")

RUN = f'name = "tiny"\n[model]\nname = "hf"\nconfig = {CONFIG}\ncontext = 16\n[data]\nname = "files"\n'
TOKENS = RUN + 'tokenizer = "tokenizer.json"\n'


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Of a node whose data are a text, and a tokenizer of more tokens than the model has."""
    import tokenizers

    data = tmp_path / "data"
    data.mkdir()
    vocab = {f"word{number}": number for number in range(300)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="word0")).save(str(data / "tokenizer.json"))
    (data / "text.txt").write_text("word1 word2 " * 400)
    home = Home(tmp_path / "home").create()
    network = cast(Network, SimpleNamespace(call=None, links=list, remember=lambda peer, addresses: None))
    settings = NodeSettings(home=home.root, data=(data,), share_data=False)
    return Runs(settings, home, Identity.generate(), network, PeerCache(home.peers), None)


def founded(runs: Runs) -> list[Path]:
    return list(runs._home.runs.iterdir())


@pytest.mark.asyncio
async def test_the_tokenizer_is_looked_at_before_anything_is_written(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming, "write_checkpoint", lambda *_: pytest.fail("it was written"))
    with pytest.raises(LocalError, match="has 300 tokens, and the run's model 256"):
        await runs.create(TOKENS, train=True)
    assert founded(runs) == []


@pytest.mark.parametrize("way", ["entering", "writing"])
@pytest.mark.asyncio
async def test_a_run_that_is_not_entered_leaves_no_origin(
    runs: Runs, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    async def enter(self: Runs, found: Introduction, train: bool, checkpoint: Checkpoint) -> Any:
        written.append(checkpoint.path)
        assert checkpoint.path.is_relative_to(self._home.run_folder(found.manifest.run_id.hex()))
        raise LocalError("the disk is full")

    def load(path: Path) -> Any:
        written.append(path)
        raise LocalError("the disk is full")

    if way == "entering":
        monkeypatch.setattr(Runs, "_enter", enter)
    else:
        monkeypatch.setattr(naming, "load", load)
    with pytest.raises(LocalError, match="the disk is full"):
        await runs.create(RUN, train=True)
    assert len(written) == 1
    assert founded(runs) == []


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"model_type": "nonsense"}, "does not understand the config"),
        ({"model_type": "vit"}, "has no causal language model of type vit"),
        (BERT, "of type bert, looks at tokens that come later"),
        ({**TABLE, "hidden_size": "wide"}, "does not understand the config"),
        ({**TABLE, "vocab_size": 100}, "256 tokens or more"),
        ({**TABLE, "max_position_embeddings": 8}, "sees 8 tokens at most"),
    ],
)
def test_a_config_of_which_nothing_can_be_made_is_said_to_be_so(
    tmp_path: Path, table: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(LocalError, match=sentence):
        begun(tmp_path, manifest(table))


def test_the_disk_is_asked_before_the_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(naming, "kind_of", lambda _: pytest.fail("it was written"))
    with pytest.raises(NoRoom, match=r"trying to export the model .* takes .* on the disk of .*, which has 1000 B"):
        begun(tmp_path)
