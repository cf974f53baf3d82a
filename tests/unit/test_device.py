"""The device that is trained on: chosen, refused if it is not there, named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from shoal.node.ipc.shm import SharedVector
from shoal.node.training.trainer import device as module
from shoal.node.training.trainer.device import choose_device, device_bytes, device_name, pin, same_random_numbers
from shoal.protocol.base.errors import LocalError


def have(monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("gpus", "mps", "chosen"), [(2, False, "cuda"), (0, True, "mps"), (0, False, "cpu")])
def test_auto_is_the_fastest_that_is_there(monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, chosen: str) -> None:
    have(monkeypatch, gpus, mps)
    assert choose_device("auto") == chosen
    assert choose_device("cpu") == "cpu"


def test_a_gpu_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, gpus=2, mps=False)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(LocalError, match="cuda:2 is not here: torch finds 2 NVIDIA GPUs, cuda:0 to cuda:1"):
        choose_device("cuda:2")


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "mps"])
def test_what_is_not_here_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    have(monkeypatch, gpus=0, mps=False)
    with pytest.raises(LocalError, match=f"{wanted} is not here: torch finds no .*; use --device cpu or auto"):
        choose_device(wanted)


def test_a_cpu_has_no_memory_of_its_own() -> None:
    assert device_name(torch.device("cpu")) == "cpu"
    assert device_bytes(torch.device("cpu")) == 0


class Answer:
    """Like torch's enum of CUDA's errors: `success` is as true as the others."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __int__(self) -> int:
        return self.code


@pytest.mark.parametrize(("code", "kept"), [(0, 1), (712, 0)])
def test_memory_that_is_pinned_is_never_given_back(monkeypatch: pytest.MonkeyPatch, code: int, kept: int) -> None:
    asked: list[tuple[int, ...]] = []

    class Runtime:
        def cudaHostRegister(self, *what: int) -> Answer:
            asked.append(what)
            return Answer(code)

    def zeros(count: int, device: torch.device) -> None:
        raise RuntimeError("CUDA error: the one that was left over")

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(module, "PINNED", [])
    with SharedVector.create(5000) as shared:
        vector, elsewhere = torch.from_numpy(shared.array), torch.empty(5000)[1:]
    monkeypatch.setattr(torch, "zeros", zeros)
    for each in (vector, elsewhere):
        pin(each, torch.device("cuda"))
    pin(vector, torch.device("cpu"))
    assert asked == [(vector.data_ptr(), 20_000, 0)]
    assert len(module.PINNED) == kept


def test_random_numbers_of_an_apple_gpu_go_on_as_if_nothing_had_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.tensor([7])]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", states.append)
    before = torch.get_rng_state()

    def draw_and_fail() -> None:
        torch.rand(3)
        states.append(torch.tensor([8]))
        raise KeyError

    with pytest.raises(KeyError), same_random_numbers(torch.device("mps")):
        draw_and_fail()
    assert states[-1] is states[0]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["cuda:1", "xpu", "cpu", "meta"])
def test_random_numbers_of_each_other_device_do_so_too(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    forked: list[tuple[list[torch.device], str]] = []

    @contextmanager
    def fork(devices: Sequence[torch.device], device_type: str = "cuda") -> Iterator[None]:
        forked.append((list(devices), device_type))
        yield

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    with same_random_numbers(torch.device(kind)):
        pass
    assert forked == [([torch.device(kind)], kind.partition(":")[0]) if kind in ("cuda:1", "xpu") else ([], "cuda")]
