"""A want of memory is known by what torch says, on each kind of device; and really met, on the CPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from shoal.node.base.room import is_out_of_memory
from shoal.node.training.trainer.recorded_step import NotRecordedError

WANTS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError(
        "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB)"
    ),
    RuntimeError("[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 68719476736 bytes."),
]


@pytest.mark.parametrize("error", WANTS)
def test_a_want_of_memory_is_known(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_so_is_one_behind_another_error() -> None:
    error = NotRecordedError("the step cannot be recorded")
    assert not is_out_of_memory(error)
    error.__cause__ = WANTS[0]
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape '[2]' is invalid"), ValueError("out of memory"), KeyboardInterrupt(), None]
)
def test_nothing_else_is(error: BaseException | None) -> None:
    assert not is_out_of_memory(error)


# The process may take 60 MB more than it has; a sequence of this model needs 1 MB for its logits alone.
SCRIPT = """
    import resource, sys
    import torch
    from shoal.node.training.trainer.inner import InnerTrainer
    from shoal.node.manifest.manifest import Manifest, ModelSpec
    from shoal.node.manifest.method import MethodSpec
    from tests.unit.test_inner import CORPUS

    torch.set_num_threads(1)
    model = ModelSpec(vocab=4096, dim=8, layers=1, heads=1, kv_heads=1, hidden=8, context=64)
    one = InnerTrainer(Manifest(name="wide", model=model, method=MethodSpec(batch=128, inner_steps=1)), CORPUS)
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (60 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(one.train(1, [0]).loss, one.micro_batch)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux refuses memory beyond RLIMIT_AS")
def test_a_process_that_may_have_no_more_trains_on_less_at_once() -> None:
    argv = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    loss, micro_batch = done.stdout.split()
    assert 8 < float(loss) < 9  # ln(4096) = 8.3
    assert 1 <= int(micro_batch) < 64
