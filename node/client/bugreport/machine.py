"""What a report says of the machine: versions, hardware, memory, disk, and the processes of the node."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shoal.node.base.home import Home
from shoal.node.base.process_identity import PROC

PACKAGES = (
    *("shoal", "torch", "numpy", "safetensors", "libp2p", "trio", "aiohttp", "cryptography", "msgpack", "blake3"),
    *("pydantic", "typer", "transformers", "tokenizers", "peft", "datasets"),
)
MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
ABOUT_PROCESS = ("State", "VmPeak", "VmRSS", "VmSwap", "Threads", "SigQ")
CGROUP = ("memory.max", "memory.current", "cpu.max", "pids.max")
GPU = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader")
GPU_WITHIN = 2.0  # seconds
MOST_THREADS = 200
MOST_FILES = 100


def about_machine(home: Home) -> str:
    """Versions and hardware, a fact a line."""
    return "\n".join(f"{name}: {fact}" for name, fact in _machine(home)) + "\n"


def _machine(home: Home) -> Iterator[tuple[str, object]]:
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            yield package, version(package)
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "distribution", _os_name()
    yield "processor", _processor()
    yield "cores", f"{os.cpu_count()}, {_usable_cores()} of them usable"
    with suppress(OSError):
        yield "load", " ".join(f"{each:.2f}" for each in os.getloadavg())
    for line in _read(PROC / "meminfo").splitlines():
        if (name := line.partition(":")[0]) in MEMORY:
            yield name, line.partition(":")[2].strip()
    for name in CGROUP:
        if said := _read(Path("/sys/fs/cgroup") / name).strip():
            yield f"cgroup {name}", said
    for line in _gpus():
        yield "gpu", line
    with suppress(OSError):
        disk = shutil.disk_usage(_nearest(home.root))
        yield "disk of the home", f"{disk.free >> 20} MiB free of {disk.total >> 20}"


def _os_name() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    return platform.mac_ver()[0] or "unknown"


def _processor() -> str:
    lines = _read(PROC / "cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _usable_cores() -> object:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else "all"


def _gpus() -> list[str]:
    """What NVIDIA's tool says of the GPUs, if there is one."""
    if shutil.which(GPU[0]) is None:
        return []
    try:
        done = subprocess.run(GPU, capture_output=True, text=True, timeout=GPU_WITHIN)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"{GPU[0]} does not answer: {type(error).__name__}"]
    return (done.stdout or done.stderr).strip().splitlines()


def _nearest(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


# -- processes ------------------------------------------------------------------------------------------------------


def about_processes(home: Home) -> str:
    """The node's process and its children: state, memory, threads, limits and open files, as far as Linux tells."""
    node = home.daemon_process()
    if node is None:
        return "no node runs\n"
    if not node.is_here():
        return f"the node (pid {node.pid}) runs in another container or on another machine\n"
    children = _read(PROC / str(node.pid) / "task" / str(node.pid) / "children").split()
    return "\n".join(_process(pid) for pid in [str(node.pid), *children])


def _process(pid: str) -> str:
    about = PROC / pid
    states = dict(line.partition(":")[::2] for line in _read(about / "status").splitlines())
    lines = [f"process {pid}: {_read(about / 'comm').strip()}"]
    lines += [f"  {name}: {states[name].strip()}" for name in ABOUT_PROCESS if name in states]
    lines += [f"  limit: {' '.join(line.split())}" for line in _read(about / "limits").splitlines()[1:]]
    lines += [f"  thread: {each}" for each in _threads(about)]
    lines += [f"  open: {each}" for each in _open_files(about)]
    return "\n".join(lines) + "\n"


def _threads(about: Path) -> list[str]:
    """Each thread's name, state, and where in the kernel it waits."""
    found = []
    for task in _listed(about / "task")[:MOST_THREADS]:
        state = _read(task / "stat").rpartition(")")[2].split()[:1]
        found.append(f"{_read(task / 'comm').strip()} {''.join(state)} {_read(task / 'wchan').strip()}".strip())
    return found


def _open_files(about: Path) -> list[str]:
    """How many sockets, pipes and the like are open, and which files."""
    kinds, files = Counter[str](), []
    for each in _listed(about / "fd"):
        with suppress(OSError):
            target = os.readlink(each)
            if target.startswith("/") and not target.startswith(("/dev/", "/memfd:")):
                files.append(target)
            else:
                kinds[target.partition("[")[0].rstrip(":")] += 1
    return [f"{count} x {kind}" for kind, count in kinds.most_common()] + sorted(files)[:MOST_FILES]


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir(), key=lambda each: (len(each.name), each.name))
    return []


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
