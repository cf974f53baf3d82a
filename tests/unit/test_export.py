"""An exported folder is what transformers takes for a Llama, with the same logits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from shoal.node.checkpoint.about import MODEL
from shoal.node.checkpoint.export import export
from shoal.node.checkpoint.read import load
from shoal.node.manifest import Manifest
from shoal.node.methods.method import PARAMETERS
from shoal.node.models.registry import build
from shoal.protocol.errors import LocalError
from tests.unit.checkpoint_kit import MANIFEST, write


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_opens_it_and_computes_the_same_logits(tmp_path: Path, tied: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own making
        transformers = pytest.importorskip("transformers", reason="needs `pip install shoal[hf]`")
        table = MANIFEST.model_dump() | {"model": MANIFEST.model.model_dump() | {"tied": tied}}
        path, out = write(tmp_path, 4, Manifest.model_validate(table)), tmp_path / "exported"
        export(path, out)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        tokens = torch.arange(12)[None] % MANIFEST.model.vocab  # (B = 1, T)
        with torch.inference_mode():
            expected = theirs(tokens).logits
    checkpoint = load(path)
    ours = build(checkpoint.manifest)
    checkpoint.shape.layout.load(checkpoint.vectors[PARAMETERS], ours)
    with torch.inference_mode():
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-5)
    assert theirs.generation_config.eos_token_id == 0


def test_a_folder_that_exists_is_left_alone_and_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    with pytest.raises(LocalError, match="exists"):
        export(path, tmp_path)
    (path / MODEL).write_bytes(b"")
    with pytest.raises(LocalError, match="0 bytes instead of"):
        export(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 4)

    def refuse(*_: object) -> None:
        raise LocalError("only the script that made it can build it")

    monkeypatch.setattr("shoal.node.models.llama.LlamaKind.write_config", refuse)
    (tmp_path / "exports").mkdir()
    with pytest.raises(LocalError, match="only the script"):
        export(path, tmp_path / "exports" / "out")
    assert list((tmp_path / "exports").iterdir()) == []


def test_the_settings_are_those_of_the_model(tmp_path: Path) -> None:
    export(write(tmp_path, 4), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_key_value_heads"], config["rope_theta"]) == (16, 1, 5000.0)
