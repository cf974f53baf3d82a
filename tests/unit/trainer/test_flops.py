"""FLOPs by arithmetic, what a device can do, and the share of it that training takes."""

from __future__ import annotations

import pytest
import torch

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.llama import LlamaKind
from shoal.node.training.trainer.device import mixed_precision, peak_flops
from shoal.node.training.trainer.inner import InnerTrainer
from tests.unit.lab.lab_kit import CORPUS, TINY

# By hand, dim 128, 4 layers, 4 heads, 2 key-value heads, hidden 384, context 128, 256 tokens, tied:
#   attention 128 * 128 (q) + 2 * 128 * 64 (k, v) + 128 * 128 (o)   =  49,152
#   MLP       3 * 128 * 384                                         = 147,456
#   gains     2 * 128                                               =     256
#   4 layers                                                        = 787,456
#   embedding, which is the head, 256 * 128, and the last gain 128  =  32,896      N = 820,352
#   6 N = 4,922,112;  12 * 4 layers * 128 dim * 128 tokens = 786,432
BUILT_IN = 5_708_544


def test_flops_of_a_token_as_counted_by_hand() -> None:
    assert LlamaKind().flops_per_token(ModelSpec()) == BUILT_IN


def test_an_embedding_that_is_only_looked_up_costs_nothing() -> None:
    assert LlamaKind().flops_per_token(ModelSpec(tied=False)) == BUILT_IN


def test_utilization_is_what_is_needed_by_what_is_possible() -> None:
    assert isinstance(TINY.model, ModelSpec)
    flops = LlamaKind().flops_per_token(TINY.model)
    assert InnerTrainer(TINY, CORPUS, peak=4 * 1000.0 * flops).flops_utilization(1000.0) == 0.25
    assert InnerTrainer(TINY, CORPUS, peak=None).flops_utilization(1000.0) is None


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA GeForce RTX 4090", 165.2e12)])
def test_a_known_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch, name: str, peak: float) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda:0")) == peak


def test_a_cpu_is_measured() -> None:
    peak = peak_flops(torch.device("cpu"))
    assert peak is not None
    assert 1e8 < peak < 1e15


def test_a_device_that_cannot_be_tried_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "ones", full)
    assert peak_flops(torch.device("cpu")) is None


def test_a_cpu_computes_in_full_precision() -> None:
    one = torch.full((2, 2), 1 + 2.0**-20)  # bf16 would round that away
    with mixed_precision(torch.device("cpu")):
        product = one @ torch.eye(2)
    assert product.dtype == torch.float32
    assert torch.equal(product, one)
