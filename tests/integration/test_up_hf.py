"""`shoal up` with what Hugging Face's libraries build: adapters on given weights, and text as a tokenizer's tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.manifest.manifest import load_manifest
from shoal.node.manifest.model import HfSpec
from tests.hf_kit import CONFIG, base_folder, skip_without
from tests.integration.test_up import PATIENCE, left_behind
from tests.unit.models.test_tokens import SENTENCES, tokenizer

pytestmark = skip_without("transformers", "peft")

MANIFEST = """
name = "adapters"
[model]
name = "hf"
context = 32
config = {config}
lora = {{ rank = 16, targets = ["q_proj", "v_proj", "up_proj"] }}
[data]
name = "files"
tokenizer = "tokenizer.json"
end_of_text = "<end>"
[method]
inner_steps = 6
batch = 4
warmup_steps = 1
inner_lr = 2e-2
[rounds]
chunk_bytes = 4096
[goal]
loss_ratio = 0.999
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peers", "rounds", "more"), [(2, 2, ()), (3, 9, ("--kill-at", "2", "--join-at", "3", "--baseline"))]
)
def test_adapters_on_given_weights_learn_a_tokenizers_tokens(
    tmp_path: Path, peers: int, rounds: int, more: tuple[str, ...]
) -> None:
    base, data, out = base_folder(tmp_path / "base"), tmp_path / "data", tmp_path / "out"
    data.mkdir()
    tokenizer(data)
    (data / "text.txt").write_text("\n".join(SENTENCES * 10))
    (tmp_path / "manifest.toml").write_text(MANIFEST.format(config=CONFIG))
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", str(peers), "--rounds", str(rounds), "--json"]
    argv += ["--device", "cpu", "--manifest", str(tmp_path / "manifest.toml"), "--data", str(data), "--out", str(out)]
    argv += ["--weights", str(base), *(more or ("--kill-at", "none", "--join-at", "none"))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert [each["round"] for each in answer["committed"]] == list(range(1, rounds + 1))
    assert len({each["digest"] for each in answer["peers"] if each["outcome"] != "killed"}) == 1
    assert answer["val_loss"] < answer["initial_val_loss"]
    played = load_manifest(out / "manifest.toml")
    assert isinstance(played.model, HfSpec)
    assert played.model.base, "the weights that are given are in the manifest that was run"
    assert played.data.tokenizer == "tokenizer.json"
    assert answer["initial_val_loss"] > 4.5, "nats a token of about 256 that the base knows nothing of"
    if "--baseline" in more:
        assert answer["alone_val_loss"] > 0
    assert not left_behind(tmp_path)
