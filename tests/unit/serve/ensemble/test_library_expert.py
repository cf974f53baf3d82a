"""A model of transformers and our own decoder in one ensemble."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.torch import save_file

from shoal.node.experts.evaluation import ensemble_loss, scores
from shoal.node.experts.posterior import uniform
from shoal.node.inference.served import ServeOptions
from shoal.node.inference.source import open_source
from shoal.node.manifest.model import HfSpec, LoraSpec
from shoal.node.run.first_weights import complete_spec
from shoal.node.training.models.decoder import build
from shoal.node.training.models.hf import HfModel
from shoal.node.training.models.hf_kind import fresh
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError
from tests.hf_kit import TABLE, needs
from tests.unit.serve.ensemble.kit import SMALL, write_experts
from tests.unit.serve.ensemble.test_ensemble import TOKENS, rows_of

transformers = needs("transformers")


def made(folder: Path, spec: HfSpec) -> HfModel:
    """A folder in which the expert `a` is of the library, and `b` our own."""
    write_experts(folder, {"a": (1, SMALL), "b": (2, SMALL)})
    model = fresh(spec, 5)
    layout = Layout.of(model)
    path = folder / "a.safetensors"
    save_file({name: view.clone() for name, view in layout.views(layout.read(model)).items()}, path)
    table = json.loads((folder / "ensemble.json").read_text())
    whole = complete_spec(spec, model).model_dump(mode="json")
    table["experts"][0] |= {"model": whole, "blake3": blake3(path.read_bytes()).hexdigest()}
    (folder / "ensemble.json").write_text(json.dumps(table))
    return model.eval()


def test_they_are_mixed_as_the_evaluation_mixes_them(tmp_path: Path) -> None:
    theirs = made(tmp_path / "both", HfSpec(name="hf", config=json.dumps(TABLE), context=32))
    served = open_source(tmp_path / "both", ServeOptions(device="cpu", slots=4))
    assert served.scorer.limit == 32
    text = TOKENS[:32]
    found = rows_of(served.scorer, text, prompt=1)
    models = [theirs, build(SMALL, 2)]
    wanted = ensemble_loss(scores(models, torch.tensor(text), len(text)), uniform(2))
    assert -float(np.mean(found[np.arange(31), text[1:]])) == pytest.approx(wanted, abs=1e-4)
    np.testing.assert_allclose(rows_of(served.scorer, text, prompt=20), found[19:], atol=1e-4)


def test_adapters_are_refused(tmp_path: Path) -> None:
    needs("peft")
    lora = LoraSpec(rank=2, targets=("q_proj",), base="seed")
    made(tmp_path / "both", HfSpec(name="hf", config=json.dumps(TABLE), context=32, lora=lora))
    with pytest.raises(LocalError, match="an expert is of adapters"):
        open_source(tmp_path / "both", ServeOptions(device="cpu", slots=4))
