"""The arrows between the packages, as pure functions over source text; `test_architecture.py` holds them.

The rules:
- node -> dht -> protocol, never back; inside protocol values <- cores <- shells; imports are absolute.
- A core reads no clock, opens no socket, starts no task or thread, draws no randomness of its own.
- libp2p and trio stay behind protocol/host.py and what it is made of.
- torch stays in the codecs, the reducers and the training side.
- Nothing that a peer or a file says is ever executed: no pickle, torch.load, eval, exec or import by name.
- No work is handed to asyncio's own threads, which all share: each purpose has its pool.
- `shoal --help` imports neither torch nor libp2p, and the daemon imports no torch before it joins a run.

A module directly in protocol/ is a core unless it is listed as a value or a shell, so that a new file is held
to the strictest rules until someone says why not. All of dht/ is cores: its shell is in node/.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

PACKAGES = ("protocol", "dht", "node")  # each may import itself and those before it

VALUES = {"errors", "estimate", "ids", "effects", "messages", "shortages", "signing", "wire"}
SHELLS = {
    *("host", "raw_stream", "swarm", "session", "muxer", "muxed", "packets"),  # libp2p
    *("bridge", "transport"),  # and asyncio's view of it
    "circuit",  # relays
    "bulk",  # payloads
    *("throttle", "pool"),  # threads and tasks share them
    *(
        "incoming",
        "arrivals",
        "dialing",
        "racing",
        "tasks",
        "ports",
        "addresses",
        "resolving",
        "interfaces",
    ),  # who is where
    *("network", "neighbours", "link", "surroundings", "lane", "calls", "complaints"),  # frames to peers by name
    *("identity", "private_file", "version", "descriptors"),  # key files, our version, how many files may be open
}
TENSORS = {"compression", "reduction"}  # sub-packages of pure functions on tensors
ROOM = "memory"  # what tensors and shells take memory from; it is locked, as any thread may
ROOM_FILE = f"protocol/{ROOM}.py"
PURE, SHELL = 1, 3
RANKS = {**dict.fromkeys(VALUES, 0), **dict.fromkeys((*TENSORS, ROOM), 2), **dict.fromkeys(SHELLS, SHELL)}

IMPURE = {
    *("asyncio", "trio", "anyio", "aiohttp", "socket", "ssl", "select", "selectors", "subprocess"),
    *("threading", "multiprocessing", "concurrent", "queue", "time", "datetime", "secrets", "uuid", "os"),
}
LIBP2P = {"libp2p", "trio"}
LOOKING_UP = ("protocol/resolving.py", "node/serve/app.py")  # the second before anything else runs
LIBP2P_ALLOWED = (
    *(f"protocol/{name}.py" for name in ("host", "raw_stream", "swarm", "session", "muxer", "muxed", "packets")),
    *(
        f"protocol/circuit/{name}.py"
        for name in ("circuits", "client", "meeting", "mirror", "punch", "relay", "sockets", "speech")
    ),
)
TORCH = {"torch", "safetensors.torch"}
TRAINING = (
    *(f"dataset/{name}" for name in ("corpus", "lanes", "tokens", "stream")),
    *(f"worker/{name}" for name in ("worker", "stints", "replica")),
    *("up/job", "checkpoint/write", "checkpoint/read"),
    *(
        f"serve/{name}"
        for name in ("decoder", "local", "library", "source", "folder", "models", "threads", "live/source")
    ),
)
TORCH_ALLOWED = (
    *("protocol/compression/", "protocol/reduction/", "node/methods/", "node/models/", "node/lab/", "node/script/"),
    *(
        "node/experts/merging.py",
        "node/experts/posterior.py",
        "node/experts/files.py",
        "node/experts/seeds.py",
        "node/experts/evaluation.py",
    ),
    *("node/serve/ensemble/", "node/serve/images/", "node/diffusion/", "node/trainer/"),
    "node/state/",  # what a daemon loads with its first run
    *(f"node/{name}.py" for name in TRAINING),
)
EXECUTING = {
    *(f"builtins.{name}" for name in ("eval", "exec", "compile", "__import__")),
    *("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy"),
    *("torch.load", "importlib.import_module"),
}
EXECUTING_ARGUMENTS = {"allow_pickle", "trust_remote_code"}


# -- what a file imports and uses ---------------------------------------------------------------------------


def imports(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; `from a import b` gives a.b, a module or not."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every name read, spelled out: after `import torch as t`, `t.load` is torch.load."""
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin |= {alias.asname: alias.name for alias in node.names if alias.asname}
            origin |= {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
        elif isinstance(node, ast.ImportFrom):
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            head, dot, tail = ast.unparse(node).partition(".")
            yield node.lineno, origin.get(head, f"builtins.{head}") + dot + tail


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
        *check_execution(tree),
        *check_threads(tree),
        *check_look_ups(path, tree),
        *(check_randomness(tree) if is_pure(path) else ()),
    ]
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
    if within(name, LIBP2P) and path not in LIBP2P_ALLOWED:
        yield line, f"imports {name}: libp2p and trio stay behind protocol/host.py"
    if within(name, TORCH) and not path.startswith(TORCH_ALLOWED):
        yield line, f"imports {name}: torch stays in the codecs, the reducers and the training side"


def check_execution(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in (*imports(ast.walk(tree)), *uses(tree)):
        if within(name, EXECUTING):
            yield line, f"uses {name}: data is never executed"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in EXECUTING_ARGUMENTS:
            yield node.lineno, f"passes {node.arg}: data is never executed"


def check_threads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in uses(tree):
        if name == "asyncio.to_thread":
            yield line, f"uses {name}: its threads are shared with all else; take the pool of your purpose"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node).partition("(None,")[0].endswith(".run_in_executor"):
            yield node.lineno, "uses the loop's own threads, shared with all else: take the pool of your purpose"


def check_look_ups(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "getaddrinfo" and path not in LOOKING_UP:
            yield node.lineno, "looks a name up, which may take minutes: protocol/resolving.py does, in its own threads"


def check_randomness(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The one thing of `random` that a core may touch is the class, as a type or with a seed."""
    for line, name in (*imports(ast.walk(tree)), *uses(tree)):
        if name.startswith("random.") and not within(name, {"random.Random"}):
            yield line, f"a core uses {name}: a random.Random is passed in"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Random", "random.Random") and not node.args:
            yield node.lineno, "a core makes an unseeded Random: one is passed in"


def rank(path: str) -> int:
    """Where a path of protocol/ stands among values, cores, tensors and shells."""
    parts = path.removesuffix(".py").split("/")
    return RANKS.get(parts[1], PURE) if len(parts) > 1 and parts[1] != "__init__" else 0


def is_pure(path: str) -> bool:
    """Whether the rules for cores hold here: they do for values and for functions on tensors too."""
    return path.startswith("dht/") or (path.startswith("protocol/") and rank(path) < SHELL and path != ROOM_FILE)


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
