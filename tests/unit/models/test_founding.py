"""A run of a library's model that cannot be founded says why, and leaves nothing on the founder's disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shoal.node.base import room
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.base.room import AvailableMemory, Memory, NoRoom
from shoal.node.manifest.manifest import Introduction
from shoal.node.peers.remembered import PeerCache
from shoal.node.run import first_weights
from shoal.node.run.runs import Runs
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.models.registry import build
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.hf_kit import CONFIG, TABLE, needs
from tests.unit.models.test_hf import BERT, manifest
from tests.unit.models.test_hf import founded as begun

needs("transformers")
needs("tokenizers")

RUN = f'name = "tiny"\n[model]\nname = "hf"\nconfig = {CONFIG}\ncontext = 16\n[data]\nname = "files"\n'
TOKENS = RUN + 'tokenizer = "tokenizer.json"\n'


WIDTHS = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ROBERTA = {**WIDTHS, "model_type": "roberta", "is_decoder": True, "intermediate_size": 32, "pad_token_id": 1}
BIG_BIRD = {**WIDTHS, "model_type": "big_bird", "is_decoder": True, "intermediate_size": 32, "block_size": 2} | {
    "num_random_blocks": 1,
    "max_position_embeddings": 64,
}
MPT = {"model_type": "mpt", "vocab_size": 256, "d_model": 16, "n_heads": 2, "n_layers": 1}
WHISPER = {
    **{"model_type": "whisper", "vocab_size": 51865, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
}
REFORMER = {
    **{"model_type": "reformer", "vocab_size": 320, "is_decoder": True, "hidden_size": 16, "num_attention_heads": 2},
    **{"attention_head_size": 8, "feed_forward_size": 32, "attn_layers": ["local"], "max_position_embeddings": 64},
    **{"axial_pos_embds": False, "local_attn_chunk_length": 4},
}
AXIAL = {"axial_pos_embds": True, "axial_pos_embds_dim": [8, 8]}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """The runs of a node whose data are a text, and a tokenizer with more tokens than the model."""
    import tokenizers

    data = tmp_path / "data"
    data.mkdir()
    vocab = {f"word{number}": number for number in range(300)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="word0")).save(str(data / "tokenizer.json"))
    (data / "text.txt").write_text("word1 word2 " * 400)
    home = Home(tmp_path / "home").create()
    network = cast(Network, SimpleNamespace(call=None, links=list, remember=lambda peer, addresses: None))
    settings = NodeSettings(home=home.root, data=(data,), share_data=False)
    discovery = cast(Any, SimpleNamespace(used=None))
    identity, cache = Identity.generate(), PeerCache(home.peers)
    return Runs(settings, home, identity, network, cache, None, discovery, {}, lambda addresses: None)


def founded(runs: Runs) -> list[Path]:
    return list(runs._home.runs.iterdir())


@pytest.mark.asyncio
async def test_the_tokenizer_is_looked_at_before_anything_is_written(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_weights, "write_checkpoint", lambda *_: pytest.fail("it was written"))
    with pytest.raises(LocalError, match="has 300 tokens, and the run's model 256"):
        await runs.create(TOKENS, train=True)
    assert founded(runs) == []


@pytest.mark.parametrize("way", ["entering", "writing"])
@pytest.mark.asyncio
async def test_a_run_that_is_not_entered_leaves_no_origin(
    runs: Runs, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    async def enter(self: Runs, found: Introduction, train: bool, checkpoint: Checkpoint, **_: object) -> Any:
        written.append(checkpoint.path)
        assert checkpoint.path.is_relative_to(self._home.run_folder(found.run.hex()))
        raise LocalError("the disk is full")

    def load(path: Path) -> Any:
        written.append(path)
        raise LocalError("the disk is full")

    if way == "entering":
        monkeypatch.setattr(Runs, "_enter", enter)
    else:
        monkeypatch.setattr(first_weights, "load", load)
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
        (MPT | {"max_seq_len": 8}, "sees 8 tokens at most"),
        (ROBERTA | {"max_position_embeddings": 16}, "sees 14 tokens at most"),
        (ROBERTA | {"max_position_embeddings": 24, "pad_token_id": 9}, "sees 14 tokens at most"),
        (WHISPER | {"max_target_positions": 8}, "sees 8 tokens at most"),
        (REFORMER | {"local_attn_chunk_length": 3}, "cannot train the run's model on 16 tokens: .*multiple of"),
        (REFORMER | AXIAL | {"axial_pos_shape": [4, 2]}, "cannot compute .* on 16 tokens: .*axial_pos"),
        (BIG_BIRD | {"attention_type": "block_sparse"}, "type big_bird, looks at tokens that come later"),
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
    monkeypatch.setattr(first_weights, "kind_of", lambda _: pytest.fail("it was written"))
    with pytest.raises(NoRoom, match=r"trying to export the model .* takes .* on the disk of .*, which has 1000 B"):
        begun(tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        ROBERTA | {"max_position_embeddings": 18},
        MPT | {"max_seq_len": 16},
        WHISPER | {"max_target_positions": 16},
        REFORMER,
        REFORMER | AXIAL | {"axial_pos_shape": [4, 4]},
        BIG_BIRD | {"attention_type": "original_full"},
    ],
    ids=lambda table: str(table["model_type"]),
)
def test_what_can_be_trained_on_the_runs_context_is_founded(tmp_path: Path, table: dict[str, Any]) -> None:
    """And is: what is founded with a context as long as the model sees trains on it."""
    whole, _ = begun(tmp_path, manifest(table))
    loss = build(whole).train().loss(torch.arange(17)[None])
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()


@pytest.mark.parametrize(
    "table",
    [
        {"model_type": "gpt_bigcode", "n_positions": 60_000},
        {"model_type": "ctrl", "dff": 32, "n_positions": 1 << 26},
    ],
    ids=lambda table: str(table["model_type"]),
)
def test_what_a_model_holds_beside_its_weights_is_counted_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]
) -> None:
    monkeypatch.setattr(first_weights, "fresh", lambda *_: pytest.fail("memory was asked for"))
    with pytest.raises(LocalError, match="bytes of buffers, and at most"):
        begun(tmp_path, manifest({**table, "vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2}))


def test_of_buffers_there_must_be_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_weights, "fresh", lambda *_: pytest.fail("memory was asked for"))
    table = {"model_type": "gpt_bigcode", "vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2}
    monkeypatch.setattr(room, "available_memory", lambda: AvailableMemory(Memory(1 << 30, 100 << 20)))
    with pytest.raises(NoRoom, match=r"beside its weights takes 381\.5 MiB of memory, and this machine has 1\.0 GiB"):
        begun(tmp_path, manifest(table | {"n_positions": 20_000}))


def test_a_model_is_tried_on_fewer_tokens_where_as_many_as_the_runs_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = begun(tmp_path)
    assert first_weights._trial_length(whole) == 16
    monkeypatch.setattr(first_weights, "MOST_TRIED", 5e5)
    assert first_weights._trial_length(whole) == 8
    monkeypatch.undo()
    little = Memory(1 << 20, 1 << 20)
    monkeypatch.setattr(first_weights, "available_memory", lambda: AvailableMemory(little))
    assert first_weights._trial_length(whole) == 16
    monkeypatch.setattr(
        first_weights, "available_memory", lambda: AvailableMemory(little, Memory(1 << 16, 1 << 16, "a process"))
    )
    assert first_weights._trial_length(whole) == 8
