"""What can be found out about this machine's devices without torch, which takes seconds to import.

The worker finds out whether a device is there. This only tells when it cannot be, so that a node refuses it before it
starts.
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
DRIVERS = "dev/nvidiactl", "dev/nvidia0", WINDOWS, *JETSON, AMD  # of devices that torch calls cuda
WINDOWS_CUDA = "usr/lib/wsl/lib/libcuda.so.1"  # part of NVIDIA's driver in WSL
AMD_NODES = "sys/class/kfd/kfd/topology/nodes/*/properties"
VENDORS, DISPLAY = ("0x10de", "0x1002"), ("0x03", "0x12")  # of PCI cards that show pictures, or only compute
CUDA, HIP = BUILDS = "cuda", "hip"  # of torch: for NVIDIA's GPUs, for AMD's
CHOICE = {CUDA: ("CUDA_VISIBLE_DEVICES",), HIP: ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}


def has_gpu(device: str) -> bool:
    """Whether `device` has its own memory; Apple's and Jetson's GPUs use the machine's.

    With "auto" this is so only if there is a GPU that may be opened and that torch's build supports: a driver's file
    alone does not suffice, and a worker that trains on the CPU in the end needs the machine's memory.
    """
    if any((ROOT / each).exists() for each in JETSON):
        return False
    return device.startswith("cuda") or (device == "auto" and any(map(_is_usable, _built_for())))


def check_is_here(devices: Sequence[str]) -> None:
    """UsageError for a device that cannot be on this machine, as far as that is known without torch."""
    for device in devices:
        if device == "mps" and sys.platform != "darwin":
            raise UsageError("--device mps is not here: only Apple's computers have it; use cpu or auto")
        if not device.startswith("cuda"):
            continue
        if not _has_driver() and not _has_card():
            raise UsageError(
                f"--device {device} is not here: this machine shows neither a GPU of NVIDIA's or AMD's nor a driver of "
                "one; use --device cpu or auto"
            )
        if not _built_for():
            raise UsageError(
                f"--device {device} is not here: the torch that is installed was built without it; install another "
                "build, or use --device cpu or auto"
            )


def _is_usable(build: str) -> bool:
    """Whether there is a GPU with memory of its own for that build of torch, as far as can be seen from outside."""
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
    """Whether a node of AMD's computes, and is no processor with graphics, whose memory is the machine's."""
    with suppress(OSError, ValueError):
        said = dict(line.split(maxsplit=1) for line in node.read_text(encoding="ascii").splitlines())
        return int(said.get("simd_count", 0)) > 0 and int(said.get("cpu_cores_count", 0)) == 0
    return False


def _has_driver() -> bool:
    return sys.platform == "linux" and any((ROOT / each).exists() for each in DRIVERS)


def _has_card() -> bool:
    """Whether there is one, be its driver loaded only when it is used; a container may see those of its host."""
    for vendor in ROOT.glob("sys/bus/pci/devices/*/vendor"):
        with suppress(OSError):
            kind = (vendor.parent / "class").read_text(encoding="ascii")
            if vendor.read_text(encoding="ascii").strip() in VENDORS and kind.startswith(DISPLAY):
                return True
    return False


def _built_for() -> tuple[str, ...]:
    """What torch says of itself: for CUDA, for ROCm's HIP, or for neither; both may be, if it does not say."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return BUILDS
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return BUILDS
    said = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(\S+)", text, re.MULTILINE))
    return tuple(each for each in BUILDS if said.get(each) != "None" and each in said) if said else BUILDS
