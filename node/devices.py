"""What can be known of this machine's devices without torch, which takes seconds to import.

Whether a device is here is for the worker to find out; here is only whether it cannot be, so that a node says so before
it starts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from shoal.node.options import UsageError

GPU_FILES = (  # of drivers for what torch calls cuda
    "/dev/nvidiactl",  # NVIDIA's own
    "/dev/nvidia0",
    "/dev/dxg",  # on Windows' Linux
    "/dev/nvhost-gpu",  # on Jetson
    "/dev/nvgpu",
    "/dev/nvmap",
    "/dev/kfd",  # AMD's
)
VENDORS, DISPLAY = ("0x10de", "0x1002"), ("0x03", "0x12")  # of PCI cards that show pictures, or only compute


def has_gpu(device: str) -> bool:
    """Whether what trains on `device` has memory of its own there; on Apple's GPUs it is the machine's."""
    return device.startswith("cuda") or (device == "auto" and _has_driver() and not _is_built_without())


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
        if _is_built_without():
            raise UsageError(
                f"--device {device} is not here: the torch that is installed was built without it; install another "
                "build, or use --device cpu or auto"
            )


def _has_driver() -> bool:
    return sys.platform == "linux" and any(Path(each).exists() for each in GPU_FILES)


def _has_card() -> bool:
    """Whether there is one, be its driver loaded only when it is used; a container may see those of its host."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with suppress(OSError):
            kind = (vendor.parent / "class").read_text(encoding="ascii")
            if vendor.read_text(encoding="ascii").strip() in VENDORS and kind.startswith(DISPLAY):
                return True
    return False


def _is_built_without() -> bool:
    """Whether torch says of itself that it knows neither CUDA nor ROCm."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    said = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(\S+)", text, re.MULTILINE))
    return bool(said) and all(each == "None" for each in said.values())
