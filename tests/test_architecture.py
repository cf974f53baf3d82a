"""The tree keeps the rules of `architecture.py`, and each rule catches the violation that is planted for it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.architecture import PACKAGES, RANKS, TORCH_ALLOWED, dragged_in, violations, within

ROOT = Path(__file__).parent.parent


# -- the tree -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_every_file_keeps_the_rules(sources: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = [sentence for path, source in sources.items() for sentence in violations(path, source)]
    with capsys.disabled():
        print(f"\narchitecture: {len(sources)} files scanned, {len(found)} violations")
    assert not found, "\n".join(found)
    assert len(sources) >= 100, "the scan misses files"


def test_every_package_is_installed_and_seen_by_mypy(sources: dict[str, str]) -> None:
    """A folder that pyproject.toml does not list would be missing from the wheel, and only there."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.rpartition("/")[0] for path in sources}
    assert {f"shoal.{folder.replace('/', '.')}" for folder in folders} == set(
        settings["tool"]["setuptools"]["packages"]
    )
    for package in PACKAGES:
        assert (ROOT / ".typing/shoal" / package).resolve() == (ROOT / package).resolve()


def test_no_exception_outlives_its_file() -> None:
    listed = [*(f"protocol/{name}" for name in RANKS), *TORCH_ALLOWED]
    assert not [path for path in listed if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]


LIGHT = [
    ("node/cli/__init__.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp", "zeroconf"}),
    ("node/cli/app.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp"}),  # what `main` imports first
    ("node/daemon.py", {"torch", "zeroconf"}),
]


@pytest.mark.parametrize(("start", "heavy"), LIGHT)
def test_what_must_start_fast_drags_in_nothing_heavy(sources: dict[str, str], start: str, heavy: set[str]) -> None:
    found = dragged_in(sources, start)
    assert not [f"{chain} imports {name}" for name, chain in found.items() if within(name, heavy)]
    assert within("__future__.annotations", set(found)), "the walk saw no import at all"


# -- planted violations: the checks above can fail ----------------------------------------------------------

CORE = "protocol/membership.py"
PLANTED = [
    ("protocol/wire.py", "import shoal.dht.kademlia", "arrow"),
    ("protocol/link.py", "def f():\n    from shoal.node import daemon", "arrow"),
    ("dht/kademlia.py", "from shoal.node.spec.manifest import Manifest", "arrow"),
    (CORE, "from shoal.protocol.host import Host", "arrow"),
    (CORE, "from shoal.protocol import reduction", "arrow"),
    ("protocol/messages/rounds.py", "from shoal.protocol.commit import Commit", "arrow"),
    ("node/daemon.py", "import protocol.wire", "source tree"),
    ("node/daemon.py", "from node import manifest", "source tree"),
    ("node/daemon.py", "from . import manifest", "source tree"),
    (CORE, "import asyncio", "a core imports"),
    (CORE, "from time import monotonic", "a core imports"),
    ("protocol/some_new_file.py", "import socket", "a core imports"),
    ("protocol/wire.py", "import threading", "a core imports"),
    ("protocol/compression/int8.py", "import asyncio", "a core imports"),
    (CORE, "import random\nrandom.shuffle([])", "random.shuffle"),
    (CORE, "import random as r\nr.shuffle([])", "random.shuffle"),
    (CORE, "from random import choice", "random.choice"),
    (CORE, "from random import Random\nr = Random()", "unseeded"),
    ("protocol/network.py", "import trio", "behind protocol/host.py"),
    ("node/daemon.py", "from libp2p import new_host", "behind protocol/host.py"),
    (CORE, "import torch", "torch stays"),
    ("node/daemon.py", "import asyncio\nasyncio.to_thread(print)", "the pool of your purpose"),
    ("node/daemon.py", "loop.run_in_executor(None, print)", "the pool of your purpose"),
    ("node/api.py", "import socket\nsocket.getaddrinfo('seed', 1)", "in its own threads"),
    ("node/daemon.py", "def f():\n    from torch import Tensor", "torch stays"),
    ("node/daemon.py", "from safetensors.torch import load_file", "torch stays"),
    ("node/daemon.py", "import pickle", "never executed"),
    ("node/methods/diloco.py", "import torch\ntorch.load('x')", "torch.load"),
    ("node/methods/diloco.py", "import torch as t\nt.load('x')", "torch.load"),
    ("node/methods/diloco.py", "from torch import load", "torch.load"),
    ("node/daemon.py", "eval('1')", "eval"),
    ("node/daemon.py", "exec('1')", "exec"),
    ("node/daemon.py", "import importlib\nimportlib.import_module('x')", "import_module"),
    ("node/daemon.py", "import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
]


@pytest.mark.parametrize(("path", "source", "sentence"), PLANTED)
def test_a_planted_violation_is_caught(path: str, source: str, sentence: str) -> None:
    found = violations(path, source)
    assert any(sentence in each for each in found), found


ALLOWED = [
    (CORE, "import random\nfrom random import Random\ndef f(r: random.Random) -> Random: return Random(7)"),
    (CORE, "def f(random): return random.choice([])"),
    (CORE, "from shoal.protocol import wire\nfrom shoal.protocol.effects import Send"),
    ("protocol/host.py", "import asyncio, trio\nfrom libp2p import new_host"),
    ("protocol/network.py", "import time\nfrom shoal.protocol.membership import Membership"),
    ("protocol/reduction/mean.py", "import torch\nfrom shoal.protocol.errors import PayloadError"),
    ("node/daemon.py", "import re\nfrom shoal.dht import x\nre.compile('a')\nmodel.eval()"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_is_allowed_stays_allowed(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_a_chain_of_imports_is_followed() -> None:
    tree = {
        "node/cli.py": "from shoal.node import up\ndef late():\n    import libp2p",
        "node/__init__.py": "import numpy",
        "node/up.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import libp2p\n"
        "try:\n    from shoal.node.model.layers import Norm\nfinally: pass",
        "node/model/__init__.py": "",
        "node/model/layers.py": "class A:\n    import torch",
    }
    found = dragged_in(tree, "node/cli.py")
    assert found["torch"] == "node/cli.py -> node/up.py -> node/model/layers.py"
    assert "numpy" in found
    assert "libp2p" not in found
