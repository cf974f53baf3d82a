"""Holds the arrows between the packages, and the rules that no reviewer should have to remember.

The rules, each with a planted violation below:
- node -> dht -> protocol, never back; inside protocol values <- cores <- shells; imports are absolute.
- A core reads no clock, opens no socket, starts no task or thread, draws no randomness of its own.
- libp2p and trio stay behind protocol/host.py; torch stays in the codecs, the reducers and the training side.
- Nothing that a peer or a file says is ever executed: no pickle, torch.load, eval, exec or import by name.
- `shoal --help` imports neither torch nor libp2p, and the daemon imports no torch before it joins a run.
- A file holds one idea: at most 300 lines.

A module directly in protocol/ is a core unless it is listed as a value or a shell, so that a new file is held
to the strictest rules until someone says why not.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "dht", "node")  # each may import itself and those before it
MAX_LINES = 300

VALUES = {"errors", "estimate", "ids", "effects", "messages", "signing", "wire"}
SHELLS = {
    *("host", "bridge", "transport", "dialing", "ports"),  # libp2p, and asyncio's view of it
    *("network", "link", "lane", "calls"),  # frames to peers by name
    *("driver", "identity"),
}
TENSORS = {"compression", "reduction"}  # sub-packages of pure functions on tensors
PURE, SHELL = 1, 3
RANKS = {**dict.fromkeys(VALUES, 0), **dict.fromkeys(TENSORS, 2), **dict.fromkeys(SHELLS, SHELL)}

IMPURE = {
    *("asyncio", "trio", "anyio", "aiohttp", "socket", "ssl", "select", "selectors", "subprocess"),
    *("threading", "multiprocessing", "concurrent", "queue", "time", "datetime", "secrets", "uuid", "os"),
}
LIBP2P = {"libp2p", "trio"}
TORCH = {"torch", "safetensors.torch"}
TRAINING = ("corpus", "evaluate", "inner", "lanes", "layout", "model", "state", "state_file", "up/job", "worker")
TORCH_ALLOWED = (
    *("protocol/compression/", "protocol/reduction/", "node/methods/"),
    *(f"node/{name}.py" for name in TRAINING),
)
CODE_LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy", "imp"}
EXECUTING_CALLS = {"eval", "exec", "compile", "__import__"}
EXECUTING_ATTRIBUTES = {"torch.load", "importlib.import_module"}
EXECUTING_ARGUMENTS = {"allow_pickle", "trust_remote_code"}


# -- what a file imports ------------------------------------------------------------------------------------


def imports(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; `from a import b` gives a.b, a module or not."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def within(name: str, modules: set[str]) -> bool:
    """Whether a dotted name is one of `modules` or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but the bodies of functions and of `if TYPE_CHECKING`."""
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return
    for child in ast.iter_child_nodes(node):
        yield from at_import_time(child)


# -- the rules: a path in the tree and its source in, sentences out -----------------------------------------


def violations(path: str, source: str) -> list[str]:
    """Everything in one file that breaks a rule, as `path:line: sentence`."""
    tree = ast.parse(source)
    found = [
        *(pair for line, name in imports(ast.walk(tree)) for pair in check_import(path, line, name)),
        *check_calls(tree),
        *(check_randomness(tree) if is_pure(path) else ()),
    ]
    if source.count("\n") > MAX_LINES:
        found.append((MAX_LINES, f"longer than {MAX_LINES} lines"))
    return [f"{path}:{line}: {sentence}" for line, sentence in found]


def check_import(path: str, line: int, name: str) -> Iterator[tuple[int, str]]:
    package = path.split("/")[0]
    top, _, rest = name.partition(".")
    if not top or top in PACKAGES:
        yield line, f"imports {name}: only `shoal.{rest or top}` style names hold outside the source tree"
    if top == "shoal":
        imported = rest.split(".")[0]
        if imported not in PACKAGES[: PACKAGES.index(package) + 1]:
            yield line, f"{package} imports {name}: the arrow goes node -> dht -> protocol"
        elif package == imported == "protocol" and rank(path) < rank(rest.replace(".", "/")):
            yield line, f"imports {name}: the arrow goes shells -> tensors -> cores -> values"
    if is_pure(path) and within(name, IMPURE):
        yield line, f"a core imports {name}: clocks, sockets and tasks belong to a shell"
    if within(name, LIBP2P) and path != "protocol/host.py":
        yield line, f"imports {name}: libp2p and trio stay behind protocol/host.py"
    if within(name, TORCH) and not path.startswith(TORCH_ALLOWED):
        yield line, f"imports {name}: torch stays in the codecs, the reducers and the training side"
    if within(name, CODE_LOADERS | EXECUTING_ATTRIBUTES):
        yield line, f"imports {name}: it executes what it reads"


def check_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXECUTING_CALLS:
            yield node.lineno, f"calls {node.func.id}: data is never executed"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in EXECUTING_ATTRIBUTES:
            yield node.lineno, f"uses {ast.unparse(node)}: data is never executed"
        elif isinstance(node, ast.keyword) and node.arg in EXECUTING_ARGUMENTS:
            yield node.lineno, f"passes {node.arg}: data is never executed"


def check_randomness(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The one thing of `random` that a core may touch is the class, as a type or with a seed."""
    for line, name in imports(ast.walk(tree)):
        if within(name, {"random"}) and name not in ("random", "random.Random"):
            yield line, f"a core imports {name}: a random.Random is passed in"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random":
            yield node.lineno, f"a core uses random.{node.attr}: a random.Random is passed in"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Random") and not node.args:
            yield node.lineno, "a core makes an unseeded Random: one is passed in"


def rank(path: str) -> int:
    """Where a path of protocol/ stands among values, cores, tensors and shells."""
    parts = path.removesuffix(".py").split("/")
    return RANKS.get(parts[1], PURE) if len(parts) > 1 and parts[1] != "__init__" else 0


def is_pure(path: str) -> bool:
    """Whether the rules for cores hold here: they do for values and for functions on tensors too."""
    return path.startswith("protocol/") and rank(path) < SHELL


# -- what importing a module drags in -----------------------------------------------------------------------


def dragged_in(sources: dict[str, str], start: str) -> dict[str, str]:
    """Every outside name that importing the file `start` imports, with the chain of files to it."""
    chains, pending = {start: start}, [start]
    outside: dict[str, str] = {}
    while pending:
        path = pending.pop()
        for _, name in imports(at_import_time(ast.parse(sources[path]))):
            inside = files_of(name, sources) if name.startswith("shoal.") else []
            if not inside:
                outside.setdefault(name, chains[path])
            for found in inside:
                if found not in chains:
                    chains[found] = f"{chains[path]} -> {found}"
                    pending.append(found)
    return outside


def files_of(name: str, sources: dict[str, str]) -> list[str]:
    """The files that importing `shoal.a.b.c` runs: each package's __init__ on the way, and the module."""
    parts = name.split(".")[1:]
    prefixes = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [file for prefix in prefixes for file in (f"{prefix}/__init__.py", f"{prefix}.py")]
    return [file for file in candidates if file in sources]


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
    assert len(sources) >= 20, "the scan misses files"


def test_every_package_is_installed_and_seen_by_mypy(sources: dict[str, str]) -> None:
    """A folder that pyproject.toml does not list would be missing from the wheel, and only there."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.rpartition("/")[0] for path in sources}
    assert {f"shoal.{folder.replace('/', '.')}" for folder in folders} == set(
        settings["tool"]["setuptools"]["packages"]
    )
    for package in PACKAGES:
        assert (ROOT / ".typing/shoal" / package).resolve() == (ROOT / package).resolve()


LIGHT = [
    ("node/cli/__init__.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp"}),
    ("node/cli/app.py", {"torch", "libp2p", "trio", "pydantic", "aiohttp"}),  # what `main` imports first
    ("node/daemon.py", {"torch"}),
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
    ("dht/kademlia.py", "from shoal.node.manifest import Manifest", "arrow"),
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
    (CORE, "from random import choice", "random.choice"),
    (CORE, "from random import Random\nr = Random()", "unseeded"),
    ("protocol/network.py", "import trio", "behind protocol/host.py"),
    ("node/daemon.py", "from libp2p import new_host", "behind protocol/host.py"),
    (CORE, "import torch", "torch stays"),
    ("node/daemon.py", "def f():\n    from torch import Tensor", "torch stays"),
    ("node/daemon.py", "from safetensors.torch import load_file", "torch stays"),
    ("node/daemon.py", "import pickle", "executes"),
    ("node/methods/diloco.py", "import torch\ntorch.load('x')", "torch.load"),
    ("node/methods/diloco.py", "from torch import load", "torch.load"),
    ("node/daemon.py", "eval('1')", "eval"),
    ("node/daemon.py", "exec('1')", "exec"),
    ("node/daemon.py", "import importlib\nimportlib.import_module('x')", "import_module"),
    ("node/daemon.py", "import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
    ("node/daemon.py", "\n" * (MAX_LINES + 1), "longer than"),
]


@pytest.mark.parametrize(("path", "source", "sentence"), PLANTED)
def test_a_planted_violation_is_caught(path: str, source: str, sentence: str) -> None:
    found = violations(path, source)
    assert any(sentence in each for each in found), found


ALLOWED = [
    (CORE, "import random\nfrom random import Random\ndef f(r: random.Random) -> Random: return Random(7)"),
    (CORE, "from shoal.protocol import wire\nfrom shoal.protocol.effects import Send"),
    ("protocol/host.py", "import asyncio, trio\nfrom libp2p import new_host"),
    ("protocol/driver.py", "import time\nfrom shoal.protocol.membership import Membership"),
    ("protocol/reduction/mean.py", "import torch\nfrom shoal.protocol.errors import PayloadError"),
    ("node/daemon.py", "import re\nfrom shoal.dht import x\nre.compile('a')\nmodel.eval()"),
    ("node/daemon.py", "\n" * MAX_LINES),
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
