"""What is known about this machine's devices without importing torch, which takes seconds.

Only the worker can tell whether a device works. This module tells when it cannot, so that a node refuses the option
before it starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from shoal.node.base.options import UsageError

ROOT = Path("/")
WINDOWS = "dev/dxg"  # in WSL, for any card
JETSON = "dev/nvhost-gpu", "dev/nvgpu", "dev/nvmap"  # NVIDIA's chips that share the machine's memory
AMD = "dev/kfd"
DRIVERS = "dev/nvidiactl", "dev/nvidia0", WINDOWS, *JETSON, AMD  # files of drivers whose devices torch calls cuda
WINDOWS_CUDA = "usr/lib/wsl/lib/libcuda.so.1"  # part of NVIDIA's driver in WSL
AMD_NODES = "sys/class/kfd/kfd/topology/nodes/*/properties"
VENDORS, DISPLAY = ("0x10de", "0x1002"), ("0x03", "0x12")  # PCI cards: NVIDIA, AMD; graphics, accelerator
CUDA, HIP = BUILDS = "cuda", "hip"  # builds of torch: for NVIDIA's GPUs, for AMD's
CHOICE = {CUDA: ("CUDA_VISIBLE_DEVICES",), HIP: ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}


def has_gpu(device: str) -> bool:
    """Whether `device` has memory of its own; GPUs of Apple's and Jetson's use the machine's.

    "auto" counts only if there is a GPU that this process may open and this build of torch supports. The driver's file
    alone does not suffice: if the worker ends up on the CPU, it needs the machine's memory.
    """
    if any((ROOT / each).exists() for each in JETSON):
        return False
    return device.startswith("cuda") or (device == "auto" and any(map(_is_usable, _built_for())))


def check_is_here(devices: Sequence[str]) -> None:
    """UsageError if one of the devices cannot be on this machine, as far as that is known without torch."""
    for device in devices:
        if device == "mps" and sys.platform != "darwin":
            raise UsageError(
                "--device mps is not here: only Apple's computers have it; use cpu or auto", code="device-missing"
            )
        if not device.startswith("cuda"):
            continue
        if not _has_driver() and not _has_card():
            raise UsageError(
                f"--device {device} is not here: this machine shows neither a GPU of NVIDIA's or AMD's nor a driver of "
                "one; use --device cpu or auto",
                code="device-missing",
            )
        if not _built_for():
            raise UsageError(
                f"--device {device} is not here: the torch that is installed was built without it; install another "
                "build, or use --device cpu or auto",
                code="device-missing",
            )


def _is_usable(build: str) -> bool:
    """Whether this build of torch would find a GPU with its own memory, as far as files and variables tell."""
    chosen = [os.environ[each] for each in CHOICE[build] if each in os.environ]
    if sys.platform != "linux" or any(each.split(",")[0].strip() in ("", "-1") for each in chosen):
        return False
    if build == CUDA:
        is_on_windows = (ROOT / WINDOWS_CUDA).exists() and _may_open(ROOT / WINDOWS)
        return is_on_windows or any(map(_may_open, ROOT.glob("dev/nvidia[0-9]*")))
    return _may_open(ROOT / AMD) and any(map(_is_amd_card, ROOT.glob(AMD_NODES)))


def _may_open(device: Path) -> bool:
    return os.access(device, os.R_OK | os.W_OK)


def _is_amd_card(node: Path) -> bool:
    """Whether a node of AMD's topology is a card, not a processor with graphics, which uses the machine's memory."""
    with suppress(OSError, ValueError):
        said = dict(line.split(maxsplit=1) for line in node.read_text(encoding="ascii").splitlines())
        return int(said.get("simd_count", 0)) > 0 and int(said.get("cpu_cores_count", 0)) == 0
    return False


def _has_driver() -> bool:
    return sys.platform == "linux" and any((ROOT / each).exists() for each in DRIVERS)


def _has_card() -> bool:
    """Whether there is a card, even without a loaded driver. A container may see the cards of its host."""
    for vendor in ROOT.glob("sys/bus/pci/devices/*/vendor"):
        with suppress(OSError):
            kind = (vendor.parent / "class").read_text(encoding="ascii")
            if vendor.read_text(encoding="ascii").strip() in VENDORS and kind.startswith(DISPLAY):
                return True
    return False


def _built_for() -> tuple[str, ...]:
    """The GPU builds that torch's version.py names (CUDA, ROCm's HIP, or none); all, if it cannot be read."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return BUILDS
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return BUILDS
    said = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(\S+)", text, re.MULTILINE))
    return tuple(each for each in BUILDS if said.get(each) != "None" and each in said) if said else BUILDS
