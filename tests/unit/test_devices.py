"""A device that cannot be here is refused before anything starts; one that may be is left to the worker to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.node.base import devices
from shoal.node.base.options import UsageError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The root of one without any GPU."""
    monkeypatch.setattr(devices, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    for each in {name for names in devices.CHOICE.values() for name in names}:
        monkeypatch.delenv(each, raising=False)
    return tmp_path


def has(machine: Path, *files: str) -> None:
    for each in files:
        (machine / each).parent.mkdir(parents=True, exist_ok=True)
        (machine / each).touch()


def has_card(machine: Path, vendor: str, kind: str) -> None:
    card = machine / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "class").write_text(f"{kind}\n")


def has_amd_node(machine: Path, number: int, cores: int, simd: int) -> None:
    node = machine / f"sys/class/kfd/kfd/topology/nodes/{number}"
    node.mkdir(parents=True)
    (node / "properties").write_text(f"cpu_cores_count {cores}\nsimd_count {simd}\nlocal_mem_size 0\n")


@pytest.fixture
def torch_is_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *builds: monkeypatch.setattr(devices, "_built_for", lambda: builds)


def test_what_cannot_be_here_is_said_so(machine: Path, torch_is_for: Callable[..., None]) -> None:
    devices.check_is_here(["cpu", "auto"])
    for device, said in (("cuda", "neither a GPU"), ("cuda:1", "neither a GPU"), ("mps", "only Apple's")):
        with pytest.raises(UsageError, match=f"--device {device} is not here: .*{said}.* use .*cpu or auto"):
            devices.check_is_here(["cpu", device])
    has(machine, "dev/nvidiactl")
    torch_is_for(devices.CUDA)
    devices.check_is_here(["cuda"])
    torch_is_for()
    with pytest.raises(UsageError, match="was built without it"):
        devices.check_is_here(["cuda"])


@pytest.mark.parametrize(
    ("vendor", "kind", "is_gpu"),
    [
        ("0x10de", "0x030000", True),
        ("0x1002", "0x120000", True),
        ("0x8086", "0x030000", False),
        ("0x10de", "0x0c", False),
    ],
)
def test_a_card_whose_driver_is_not_loaded_yet_may_be_used(
    machine: Path, torch_is_for: Callable[..., None], vendor: str, kind: str, is_gpu: bool
) -> None:
    has_card(machine, vendor, kind)
    torch_is_for(*devices.BUILDS)
    assert devices._has_card() == is_gpu
    if is_gpu:
        devices.check_is_here(["cuda"])


def test_only_some_devices_have_memory_of_their_own(machine: Path, torch_is_for: Callable[..., None]) -> None:
    torch_is_for(*devices.BUILDS)
    assert [devices.has_gpu(each) for each in ("cuda:1", "cpu", "mps", "auto")] == [True, False, False, False]
    has(machine, "dev/nvidiactl", "dev/nvidia0")
    assert devices.has_gpu("auto")
    torch_is_for()
    assert not devices.has_gpu("auto"), "the worker will train on the CPU, in the machine's memory"


NVIDIA = ("dev/nvidiactl", "dev/nvidia3")
ON_WINDOWS = ("dev/dxg", devices.WINDOWS_CUDA)
CARD, GRAPHICS, NONE = (
    (0, 80),
    (8, 16),
    (8, 0),
)  # a node's cores, and what computes: of a card, a processor with, without


@pytest.mark.parametrize(
    ("files", "amd", "builds", "expected"),
    [
        (NVIDIA, (), "cuda", True),
        (NVIDIA, (), "hip", False),
        (NVIDIA, (), "cuda hip", True),  # torch does not say
        (("dev/nvidiactl",), (), "cuda", False),  # a driver, and no card
        (("dev/dxg",), (), "cuda", False),  # every Windows has it
        (ON_WINDOWS, (), "cuda", True),
        (ON_WINDOWS[1:], (), "cuda", False),
        (("dev/kfd",), (NONE, CARD), "hip", True),
        (("dev/kfd",), (NONE, CARD), "cuda", False),
        (("dev/kfd",), (NONE,), "hip", False),
        (("dev/kfd",), (GRAPHICS,), "hip", False),
        (("dev/kfd",), (), "hip", False),
        ((), (CARD,), "hip", False),
        ((*NVIDIA, "dev/kfd"), (GRAPHICS,), "hip", False),
        ((*NVIDIA, "dev/nvhost-gpu"), (), "cuda", False),  # Jetson's memory is the machine's
    ],
)
def test_auto_counts_a_gpu_that_torch_is_built_for_and_no_driver(
    machine: Path,
    torch_is_for: Callable[..., None],
    files: tuple[str, ...],
    amd: tuple[tuple[int, int], ...],
    builds: str,
    expected: bool,
) -> None:
    has(machine, *files)
    for number, node in enumerate(amd):
        has_amd_node(machine, number, *node)
    torch_is_for(*builds.split())
    assert devices.has_gpu("auto") == expected


def test_on_jetson_the_gpu_has_no_memory_of_its_own(machine: Path) -> None:
    has(machine, "dev/nvidia0", "dev/nvmap")
    assert not devices.has_gpu("cuda")


@pytest.mark.parametrize(
    ("choice", "expected"), [("", False), ("-1", False), ("-1,0", False), ("1", True), ("0,-1", True)]
)
def test_a_gpu_that_its_owner_hides_is_none(
    machine: Path, torch_is_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch, choice: str, expected: bool
) -> None:
    has(machine, *NVIDIA)
    torch_is_for(devices.CUDA)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
    assert devices.has_gpu("auto") == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", choice)
    assert devices.has_gpu("auto"), "that is for AMD's"


def test_a_gpu_that_may_not_be_opened_is_none(
    machine: Path, torch_is_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for who is not in the group of those who may: root may open all, so the system is asked in its place."""
    has(machine, *NVIDIA)
    torch_is_for(devices.CUDA)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not devices.has_gpu("auto")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ()),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ("cuda",)),
        ("cuda = None\nhip = '6.2'\n", ("hip",)),
        ("cuda = '12.8'\n", ("cuda",)),
        ("__version__ = '3'\n", ("cuda", "hip")),
    ],
)
def test_torch_says_what_it_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]
) -> None:
    (tmp_path / "version.py").write_text(text)
    monkeypatch.setattr(devices, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "__init__.py")}))
    assert devices._built_for() == expected


def test_torch_here_is_what_it_says() -> None:
    import torch

    versions = {devices.CUDA: torch.version.cuda, devices.HIP: torch.version.hip}
    assert devices._built_for() == tuple(build for build, version in versions.items() if version is not None)


def test_a_gpu_that_torch_finds_here_is_one() -> None:
    import torch

    is_found = torch.cuda.is_available() and not torch.cuda.get_device_properties(0).is_integrated
    assert devices.has_gpu("auto") or not is_found
