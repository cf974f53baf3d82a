"""The tree keeps the rules of `architecture.py`, and each rule catches the violation that is planted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import (
    LAYERS,
    LIBP2P_ALLOWED,
    LOOKING_UP,
    PACKAGES,
    PURE,
    TORCH_ALLOWED,
    circles,
    deep_reads,
    dragged_in,
    import_graph,
    violations,
    within,
)

ROOT = Path(__file__).parent.parent


# -- the tree -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_every_file_keeps_the_rules(sources: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    graph = import_graph(sources)
    found = [sentence for path, source in sources.items() for sentence in violations(path, source)] + circles(graph)
    seen = sum(len(targets) for targets in graph.values())
    with capsys.disabled():
        print(f"\narchitecture: {len(sources)} files, {seen} imports among them, {len(found)} violations")
    assert not found, "\n".join(found)
    assert len(sources) >= 100, "the scan misses files"
    assert seen >= 1000, "the scan misses imports"


def test_the_installed_packages_are_links_to_the_folders_at_the_root() -> None:
    """What is installed, read by an editor and checked by mypy is `src/shoal`; what one edits lies at the root."""
    assert {link.name: link.resolve() for link in (ROOT / "src/shoal").iterdir()} == {
        package: ROOT / package for package in PACKAGES
    }


def test_every_folder_is_a_layer_and_no_exception_outlives_its_file(sources: dict[str, str]) -> None:
    listed = [*LAYERS, *PURE, *LIBP2P_ALLOWED, *LOOKING_UP, *TORCH_ALLOWED]
    assert not [path for path in listed if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]
    folders = {folder for path in sources if (folder := "/".join(path.split("/")[:2])).count("/") and "." not in folder}
    assert not [folder for folder in folders if not any(layer.startswith(folder) for layer in LAYERS)]


def test_no_test_reads_a_private_attribute_through_two_objects() -> None:
    files = {file.relative_to(ROOT).as_posix(): file for file in sorted((ROOT / "tests").rglob("*.py"))}
    found = [each for path, file in files.items() for each in deep_reads(path, file.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)
    assert len(files) >= 300, "the scan misses files"


LIGHT = [
    ("node/client/cli/__init__.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp", "zeroconf"}),
    ("node/client/cli/app.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp"}),  # what `main` imports first
    ("node/daemon/daemon.py", {"torch", "zeroconf"}),
]


@pytest.mark.parametrize(("start", "heavy"), LIGHT)
def test_what_must_start_fast_drags_in_nothing_heavy(sources: dict[str, str], start: str, heavy: set[str]) -> None:
    found = dragged_in(sources, start)
    assert not [f"{chain} imports {name}" for name, chain in found.items() if within(name, heavy)]
    assert within("__future__.annotations", set(found)), "the walk saw no import at all"


# -- planted violations: the checks above can fail ----------------------------------------------------------

CORE = "protocol/membership/membership.py"
PLANTED = [
    ("protocol/base/wire.py", "import shoal.dht.kademlia", "upward"),
    ("protocol/net/peers/peer.py", "def f():\n    from shoal.node.base import home", "upward"),
    ("dht/kademlia.py", "from shoal.node.manifest.manifest import Manifest", "upward"),
    (CORE, "from shoal.protocol.net.transport.host import Host", "upward"),
    (CORE, "from shoal.protocol.averaging import round", "upward"),
    ("node/base/home.py", "from shoal.node.run.runs import Runs", "upward"),
    ("node/base/home.py", "def f():\n    from shoal.node.api import client", "upward"),
    ("node/experts/family.py", "if TYPE_CHECKING:\n    from shoal.node.run.runs import Runs", "upward"),
    ("node/base/home.py", "from shoal.node import join", "upward"),
    ("protocol/log/core.py", "import shoal.protocol.averaging.rounds", "upward"),
    ("protocol/messages/averaging.py", "from shoal.protocol.averaging.events import Committed", "upward"),
    ("node/worker/worker.py", "from shoal.node.supervisor.agenda import Agenda", "the daemon is another process"),
    ("node/client/script/session.py", "from shoal.node.supervisor import supervisor", "the daemon is another process"),
    ("node/worker/stints.py", "def f():\n    from shoal.node.run import run", "upward"),
    ("node/supervisor/supervisor.py", "from shoal.node.worker.stints import Orders", "a worker is another process"),
    ("node/run/run.py", "if TYPE_CHECKING:\n    import shoal.node.worker.weights", "a worker is another process"),
    ("node/daemon/daemon.py", "import protocol.wire", "source tree"),
    ("node/daemon/daemon.py", "from node import manifest", "source tree"),
    ("node/daemon/daemon.py", "from . import manifest", "source tree"),
    (CORE, "import asyncio", "a core imports"),
    (CORE, "from time import monotonic", "a core imports"),
    ("protocol/base/some_new_file.py", "import socket", "a core imports"),
    ("protocol/base/wire.py", "import threading", "a core imports"),
    ("protocol/tensors/compression/int8.py", "import asyncio", "a core imports"),
    (CORE, "import random\nrandom.shuffle([])", "random.shuffle"),
    (CORE, "import random as r\nr.shuffle([])", "random.shuffle"),
    (CORE, "from random import choice", "random.choice"),
    (CORE, "from random import Random\nr = Random()", "unseeded"),
    ("protocol/net/peers/network.py", "import trio", "behind protocol/net/transport/host.py"),
    ("node/daemon/daemon.py", "from libp2p import new_host", "behind protocol/net/transport/host.py"),
    (CORE, "import torch", "torch stays"),
    ("node/daemon/daemon.py", "import asyncio\nasyncio.to_thread(print)", "the pool of your purpose"),
    ("node/daemon/daemon.py", "loop.run_in_executor(None, print)", "the pool of your purpose"),
    ("node/daemon/web/server.py", "import socket\nsocket.getaddrinfo('seed', 1)", "in its own threads"),
    ("node/daemon/daemon.py", "def f():\n    from torch import Tensor", "torch stays"),
    ("node/daemon/daemon.py", "from safetensors.torch import load_file", "torch stays"),
    ("node/daemon/daemon.py", "import pickle", "never executed"),
    ("node/training/methods/diloco.py", "import torch\ntorch.load('x')", "torch.load"),
    ("node/training/methods/diloco.py", "import torch as t\nt.load('x')", "torch.load"),
    ("node/training/methods/diloco.py", "from torch import load", "torch.load"),
    ("node/daemon/daemon.py", "eval('1')", "eval"),
    ("node/daemon/daemon.py", "exec('1')", "exec"),
    ("node/daemon/daemon.py", "import importlib\nimportlib.import_module('x')", "import_module"),
    ("node/daemon/daemon.py", "import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
]


@pytest.mark.parametrize(("path", "source", "sentence"), PLANTED)
def test_a_planted_violation_is_caught(path: str, source: str, sentence: str) -> None:
    found = violations(path, source)
    assert any(sentence in each for each in found), found


ALLOWED = [
    (CORE, "import random\nfrom random import Random\ndef f(r: random.Random) -> Random: return Random(7)"),
    (CORE, "def f(random): return random.choice([])"),
    (CORE, "from shoal.protocol.base import wire\nfrom shoal.protocol.base.effects import Send"),
    ("protocol/net/transport/host.py", "import asyncio, trio\nfrom libp2p import new_host"),
    ("protocol/net/peers/network.py", "import time\nfrom shoal.protocol.membership.membership import Membership"),
    ("node/daemon/daemon.py", "from shoal.node.daemon.web.server import serve"),
    ("node/client/script/session.py", "from shoal.node.worker.stints import Stints"),
    ("node/worker/worker.py", "from shoal.node.ipc.link import WorkerLink"),
    ("protocol/tensors/reduction.py", "import torch\nfrom shoal.protocol.base.errors import PayloadError"),
    ("node/daemon/daemon.py", "import re\nfrom shoal.dht import record\nre.compile('a')\nmodel.eval()"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_is_allowed_stays_allowed(path: str, source: str) -> None:
    assert violations(path, source) == []


DEEP = [
    "def test() -> None: assert node.member._rounds._round",
    "def f() -> None:\n    async def g() -> None:\n        (await node._peer())._x",
    "host._swarm._guests = 1",
    "assert self._round._exchange",
    "assert node._calls[0]._queue",
    "assert node._calls()._queue",
    "def test() -> None:\n    rounds = member._rounds\n    assert rounds._round",
    "def test() -> None:\n    me, host = 'a', a._host\n    later(lambda: host._swarm)",
]


@pytest.mark.parametrize("source", DEEP)
def test_a_planted_read_through_two_objects_is_caught(source: str) -> None:
    assert len(deep_reads("tests/test_it.py", source)) == 1


SHALLOW = [
    "assert node.member.rounds._means.spread",
    "assert self._round.exchange._payloads",
    "assert node._rounds.__class__",
    "def test() -> None:\n    rounds = member.rounds\n    assert rounds._round",
    "def test() -> None:\n    rounds = member._rounds\n    assert rounds.exchange\n    assert member._rounds",
]


@pytest.mark.parametrize("source", SHALLOW)
def test_a_read_of_one_object_is_not(source: str) -> None:
    assert deep_reads("tests/test_it.py", source) == []


CIRCLES = [
    ("from shoal.node.base.b import B", "from shoal.node.base.a import A"),
    ("from shoal.node.base import b", "def f():\n    from shoal.node.base.a import A"),
    ("if TYPE_CHECKING:\n    from shoal.node.base.b import B", "from shoal.node.base.c import C"),
]


@pytest.mark.parametrize(("one", "other"), CIRCLES)
def test_a_planted_circle_is_caught(one: str, other: str) -> None:
    tree = {"node/base/a.py": one, "node/base/b.py": other, "node/base/c.py": "import shoal.node.base.a"}
    assert len(circles(import_graph(tree))) == 1
    assert circles(import_graph(tree | {"node/base/b.py": "import os"})) == []


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
