"""An exported folder is what transformers takes for a Llama, with the same logits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.node.base.home import Home
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.served import ServeOptions
from shoal.node.inference.source import open_source
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.checkpoint.export import export
from shoal.node.training.checkpoint.read import load
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.registry import build
from shoal.protocol.base.errors import LocalError
from tests.hf_kit import TABLE, needs
from tests.run_kit import first_weights
from tests.unit.checkpoint_kit import MANIFEST, write
from tests.unit.models.test_tokens import tokenizer


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_opens_it_and_computes_the_same_logits(tmp_path: Path, tied: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own making
        transformers = pytest.importorskip("transformers", reason="transformers IS NOT INSTALLED: see `make install`")
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


def opened(out: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers IS NOT INSTALLED: see `make install`")
    return transformers.AutoTokenizer.from_pretrained(out)


def test_transformers_opens_the_tokenizer_of_a_run_of_bytes(tmp_path: Path) -> None:
    model = MANIFEST.model.model_copy(update={"vocab": 256})
    export(write(tmp_path, 4, MANIFEST.model_copy(update={"model": model})), tmp_path / "out")
    tokens = opened(tmp_path / "out")
    texts = ["Once upon a time,\n\tthere", "Ā ÿ ¡ ­ \x7f \x00 \x01", "Grüße, 世界 🐟", "  two  spaces "]
    for text in texts:
        assert tokens(text)["input_ids"] == list(text.encode())
        assert tokens.decode(list(text.encode())) == text
    every = "".join(map(chr, range(0x800))) + "世界🐟"
    assert tokens(every)["input_ids"] == list(every.encode())
    assert sorted(tokens.get_vocab().values()) == list(range(256))


def test_a_runs_tokenizer_goes_with_it(tmp_path: Path) -> None:
    """And the token that ends a text is that of the run; nothing that its model has not seen is put before one."""
    library = needs("tokenizers")
    content = json.loads(tokenizer(tmp_path).read_text())
    single = [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<end>": {"id": "<end>", "ids": [1], "tokens": ["<end>"]}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": special,
    }
    given = json.dumps(content).encode()
    assert library.Tokenizer.from_str(given.decode()).encode("word3").ids == [1, 5]
    data = DataSpec(name="files", tokenizer="tokenizer.json", end_of_text="<end>")
    model = MANIFEST.model.model_copy(update={"vocab": 64})
    path = write(tmp_path, 4, MANIFEST.model_copy(update={"model": model, "data": data}))
    export(path, tmp_path / "out", given)
    tokens = opened(tmp_path / "out")
    assert tokens("word3 word4 <end>")["input_ids"] == [5, 6, 1]
    assert (tokens.eos_token, tokens.eos_token_id) == ("<end>", 1)
    served = open_source(tmp_path / "out", ServeOptions("cpu", slots=1))
    assert served.vocabulary.ends == {1}
    assert served.vocabulary.encode("word3 word4") == [5, 6]
    assert isinstance(served.scorer, LlamaScorer), "our own decoder needs no library, whatever ends its texts"
    export(path, tmp_path / "bare")
    assert not (tmp_path / "bare/tokenizer.json").exists()
    assert json.loads((tmp_path / "bare/config.json").read_text())["eos_token_id"] is None
    small = write(tmp_path / "small", 4, MANIFEST.model_copy(update={"data": data}))
    with pytest.raises(LocalError, match="tokens, and the run's model"):
        export(small, tmp_path / "misfit", given)
    assert not (tmp_path / "misfit").exists()


LLAMA = {key: each for key, each in TABLE.items() if key != "max_position_embeddings"}  # ends texts at 2 by default
ROBERTA = {"model_type": "roberta", "is_decoder": True, "pad_token_id": 3, "eos_token_id": 2, "vocab_size": 256} | {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("of_bytes", [True, False])
@pytest.mark.parametrize("table", [LLAMA, LLAMA | {"eos_token_id": None}, ROBERTA], ids=["llama", "endless", "roberta"])
def test_a_librarys_model_ends_texts_where_the_run_does(tmp_path: Path, table: dict[str, Any], of_bytes: bool) -> None:
    """And computes what it did: a type may count its positions from the token that pads."""
    transformers = needs("transformers")
    given = None if of_bytes else tokenizer(tmp_path).read_bytes()
    data = DataSpec() if of_bytes else DataSpec(name="files", tokenizer="tokenizer.json", end_of_text="<end>")
    model = HfSpec(name="hf", config=json.dumps(table), context=16)
    whole, checkpoint = first_weights(Manifest(name="a", model=model, data=data), (), Home(tmp_path / "home").create())
    export(checkpoint.path, tmp_path / "out", given)
    end = 0 if of_bytes else 1
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == end
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert (theirs.config.eos_token_id, theirs.generation_config.eos_token_id) == (end, end)
    assert theirs.config.pad_token_id == table.get("pad_token_id")
    ours = build(whole).eval()
    checkpoint.shape.layout.load(checkpoint.vectors[PARAMETERS], ours)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        assert torch.equal(ours(tokens), theirs(tokens).logits)
    assert open_source(tmp_path / "out", ServeOptions("cpu", slots=1)).vocabulary.ends == {end}


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

    monkeypatch.setattr("shoal.node.training.models.llama.LlamaKind.write", refuse)
    (tmp_path / "exports").mkdir()
    with pytest.raises(LocalError, match="only the script"):
        export(path, tmp_path / "exports" / "out")
    assert list((tmp_path / "exports").iterdir()) == []


def test_the_settings_are_those_of_the_model(tmp_path: Path) -> None:
    export(write(tmp_path, 4), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_key_value_heads"], config["rope_theta"]) == (16, 1, 5000.0)
