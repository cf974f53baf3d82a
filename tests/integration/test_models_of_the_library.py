"""The table of all types of causal models, and another program that takes what is exported by its tensors' names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from shoal.node.base.home import Home
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.training.checkpoint.export import export
from shoal.protocol.base.ids import PeerId
from tests.hf_kit import needs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

transformers = needs("transformers")

from kit.toys import toy  # noqa: E402

from tests.run_kit import first_weights  # noqa: E402

ME = PeerId("12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ")
ARCHITECTURES = {  # as gguf calls them
    "mixtral": "LLAMA",
    "qwen2_moe": "QWEN2MOE",
    "qwen3_moe": "QWEN3MOE",
    "olmoe": "OLMOE",
    "glm4_moe": "GLM4_MOE",
    "hunyuan_v1_moe": "HUNYUAN_MOE",
    "gpt_neox": "GPTNEOX",
    "ernie4_5_moe": "ERNIE4_5_MOE",
}


@pytest.mark.slow
def test_every_type_works_or_is_refused_where_the_library_alone_cannot() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "models.py"), "--json"], capture_output=True, text=True, timeout=1500
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    print("\n".join(f"{row['type']}: {row['what']} {row['where']} {row['reason']} {row['line']}" for row in rows))
    assert done.returncode == 0, done.stderr
    counts = Counter(row["what"] for row in rows)
    assert counts["works"] + counts["refused"] >= len(rows) / 2, counts
    assert counts["refused"] <= len(rows) / 10, counts
    assert all(row["reason"] and row["line"] for row in rows if row["what"] != "works")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_gguf_knows_the_names(tmp_path: Path, model_type: str) -> None:
    """As its converter hands them on: experts as the stack that it makes of them, and one bias with a dot."""
    gguf: Any = pytest.importorskip("gguf", reason="DOES NOT RUN: gguf is not installed: pip install gguf")
    model = HfSpec(name="hf", config=json.dumps(toy(model_type)), context=16)
    _, origin = first_weights(Manifest(name="toy", model=model), (), Home(tmp_path / "home").create())
    export(origin.path, tmp_path / "out")
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, ARCHITECTURES[model_type]), 4)
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        stacked = {re.sub(r"\.experts\.\d+\.", ".experts.", name) for name in file.keys()}  # noqa: SIM118
    handed_on = sorted(name.replace("e_score_correction_bias", "e_score_correction.bias") for name in stacked)
    unknown = [name for name in handed_on if names.get_name(name, (".weight", ".bias")) is None]
    assert not unknown
