"""The layers of the tree, what a file may import and what a test may read, as pure functions over source text.

The rules, held by `test_architecture.py`:
- A file imports only from its own layer and those below it (LAYERS), lazy and TYPE_CHECKING imports included; and no
  import is part of a circle, not even within a layer. Imports are absolute.
- A core reads no clock, opens no socket, starts no task or thread, draws no randomness of its own.
- libp2p and trio stay behind protocol/net/transport/host.py and what it is made of.
- torch stays in the codecs, the reducers and the training side.
- Nothing that a peer or a file says is ever executed: no pickle, torch.load, eval, exec or import by name.
- A worker and its daemon are two processes, which share node/ipc alone: node/worker is imported on its own side only,
  which never imports node/supervisor.
- No work is handed to asyncio's own threads, which all share: each purpose has its pool.
- `shoal --help` imports neither torch nor libp2p, and the daemon imports no torch before it joins a run.
- A test never reads a private attribute through two objects, as in `node._rounds._exchange`: it says what is promised
  to users of a class, or tests the inner object by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping

PACKAGES = ("protocol", "dht", "node")

# From the bottom up: a file belongs to the longest of these that its path begins with.
LAYERS = (
    *("protocol/base", "protocol/messages"),
    *("protocol/tensors/memory", "protocol/tensors"),
    *("protocol/membership", "protocol/log"),
    *("protocol/averaging", "protocol/catchup", "protocol/member"),
    "protocol/replicas",
    *("protocol/net/system", "protocol/net/measure", "protocol/net/libp2p", "protocol/net/circuit"),
    *("protocol/net/transport", "protocol/net/bulk", "protocol/net/peers", "protocol"),
    "dht",
    *("node/base", "node/ipc", "node/manifest", "node/api", "node/handout"),
    *("node/training/data", "node/training/models", "node/training/methods", "node/training/state"),
    *("node/training/trainer", "node/training/checkpoint", "node/training", "node/lab"),
    *("node/worker", "node/supervisor"),
    *("node/peers/gateway", "node/peers"),
    *("node/experts", "node/run"),
    *("node/inference", "node/diffusion", "node/extensions"),
    *("node/daemon", "node/client", "node"),
)

# Cores, values and functions on tensors: what is decided in them follows from their arguments alone.
PURE = (
    *(f"protocol/{name}/" for name in ("base", "messages", "tensors", "membership", "log")),
    *(f"protocol/{name}/" for name in ("averaging", "catchup", "member", "replicas", "net/measure")),
    "protocol/net/libp2p/inbound_limits.py",
    "dht/",  # its shell is node/peers/discovery.py
)
MEMORY_FILE = "protocol/tensors/memory.py"  # what tensors and shells take memory from; it is locked, as any thread may

IMPURE = {
    *("asyncio", "trio", "anyio", "aiohttp", "socket", "ssl", "select", "selectors", "subprocess"),
    *("threading", "multiprocessing", "concurrent", "queue", "time", "datetime", "secrets", "uuid", "os"),
}
LIBP2P = {"libp2p", "trio"}
LIBP2P_ALLOWED = (
    *("protocol/net/libp2p/", "protocol/net/transport/host.py"),
    *(
        f"protocol/net/circuit/{name}.py"
        for name in ("client", "meeting", "probes", "punch", "relay", "sockets", "messages")
    ),
)
LOOKING_UP = ("protocol/net/system/resolving.py", "node/inference/http/server.py")  # the second before all else
TORCH = {"torch", "safetensors.torch"}
TORCH_ALLOWED = (
    *("protocol/tensors/compression/", "protocol/tensors/reduction.py"),
    *(f"node/training/{name}/" for name in ("models", "methods", "state", "trainer")),  # loaded with the first run
    *(f"node/training/data/{name}.py" for name in ("corpus", "held_out", "lanes", "tokens", "stream")),
    *(f"node/training/checkpoint/{name}.py" for name in ("read", "write")),
    *(f"node/experts/{name}.py" for name in ("merging", "posterior", "files", "founding", "evaluation")),
    *(f"node/worker/{name}.py" for name in ("worker", "stints", "weights")),
    *(f"node/inference/{name}.py" for name in ("local", "library", "models", "folder", "live")),
    *("node/run/first_weights.py", "node/inference/ensemble/", "node/diffusion/"),
    *("node/lab/", "node/client/script/", "node/client/up/job.py"),
)
WORKERS = ("node/worker/", "node/diffusion/worker.py", "node/client/script/")  # built-in workers, and users' scripts
FORKS_WORKERS = "node/client/up/forking.py"  # becomes one
EXECUTING = {
    *(f"builtins.{name}" for name in ("eval", "exec", "compile", "__import__")),
    *("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy"),
    *("torch.load", "importlib.import_module"),
}
EXECUTING_ARGUMENTS = {"allow_pickle", "trust_remote_code"}


# -- what a file imports and uses ---------------------------------------------------------------------------


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; `from a import b` gives a.b, a module or not."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def uses(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every name read, spelled out: after `import torch as t`, `t.load` is torch.load."""
    origin: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            origin |= {alias.asname: alias.name for alias in node.names if alias.asname}
            origin |= {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
        elif isinstance(node, ast.ImportFrom):
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            head, dot, tail = name.partition(".")
            yield node.lineno, origin.get(head, f"builtins.{head}") + dot + tail


def dotted(node: ast.expr) -> str:
    """`a.b.c`, or nothing if the expression is anything else than names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


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
    nodes = [*ast.walk(ast.parse(source))]
    imported, used = [*imports(nodes)], [*uses(nodes)]
    found = [
        *(pair for line, name in imported for pair in check_import(path, line, name)),
        *check_execution(nodes, [*imported, *used]),
        *check_threads(nodes, used),
        *check_look_ups(path, nodes),
        *(check_randomness(nodes, [*imported, *used]) if is_pure(path) else ()),
    ]
    return [f"{path}:{line}: {sentence}" for line, sentence in found]


def check_import(path: str, line: int, name: str) -> Iterator[tuple[int, str]]:
    top, _, rest = name.partition(".")
    if not top or top in PACKAGES:
        yield line, f"imports {name}: only `shoal.{rest or top}` style names hold outside the source tree"
    if top == "shoal" and layer_of(path) < layer_of(rest.replace(".", "/")):
        yield line, f"imports {name}: upward, from {LAYERS[layer_of(path)]} (the layers are in tests/architecture.py)"
    if within(name, {"shoal.node.worker"}) and not path.startswith((*WORKERS, FORKS_WORKERS)):
        yield line, f"imports {name}: a worker is another process, and what is shared with it lies in node/ipc"
    if path.startswith(WORKERS) and within(name, {"shoal.node.supervisor"}):
        yield line, f"imports {name}: the daemon is another process, and what is shared with it lies in node/ipc"
    if is_pure(path) and within(name, IMPURE):
        yield line, f"a core imports {name}: clocks, sockets and tasks belong to a shell"
    if within(name, LIBP2P) and not path.startswith(LIBP2P_ALLOWED):
        yield line, f"imports {name}: libp2p and trio stay behind protocol/net/transport/host.py"
    if within(name, TORCH) and not path.startswith(TORCH_ALLOWED):
        yield line, f"imports {name}: torch stays in the codecs, the reducers and the training side"


def check_execution(nodes: Iterable[ast.AST], names: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, name in names:
        if within(name, EXECUTING):
            yield line, f"uses {name}: data is never executed"
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg in EXECUTING_ARGUMENTS:
            yield node.lineno, f"passes {node.arg}: data is never executed"


def check_threads(nodes: Iterable[ast.AST], used: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, name in used:
        if name == "asyncio.to_thread":
            yield line, f"uses {name}: its threads are shared with all else; take the pool of your purpose"
    for node in nodes:
        if isinstance(node, ast.Call) and names_the_loops_own(node):
            yield node.lineno, "uses the loop's own threads, shared with all else: take the pool of your purpose"


def names_the_loops_own(call: ast.Call) -> bool:
    """Whether it is `loop.run_in_executor(None, ...)`."""
    executor = call.args[0] if call.args else None
    is_none = isinstance(executor, ast.Constant) and executor.value is None
    return is_none and isinstance(call.func, ast.Attribute) and call.func.attr == "run_in_executor"


def check_look_ups(path: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "getaddrinfo" and path not in LOOKING_UP:
            yield (
                node.lineno,
                "looks a name up, which may take minutes: protocol/net/system/resolving.py does, in its own threads",
            )


def check_randomness(nodes: Iterable[ast.AST], names: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The one thing of `random` that a core may touch is the class, as a type or with a seed."""
    for line, name in names:
        if name.startswith("random.") and not within(name, {"random.Random"}):
            yield line, f"a core uses {name}: a random.Random is passed in"
    for node in nodes:
        if isinstance(node, ast.Call) and dotted(node.func) in ("Random", "random.Random") and not node.args:
            yield node.lineno, "a core makes an unseeded Random: one is passed in"


def layer_of(path: str) -> int:
    """The place in LAYERS of a file, or of a module written as a path; what lies in none of them stands on top."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    prefixes = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LAYERS.index(prefix) for prefix in prefixes if prefix in LAYERS), len(LAYERS) - 1)


def is_pure(path: str) -> bool:
    return path.startswith(PURE) and path != MEMORY_FILE


# -- what a test may read -----------------------------------------------------------------------------------


def deep_reads(path: str, source: str) -> list[str]:
    """Each private attribute that is read of an object which was itself got by a private attribute."""
    if source.count("._") < 2:  # as in most files; parsing takes most of the time
        return []
    found = []
    for nodes in ([*ast.walk(scope)] for scope in outermost(ast.parse(source))):
        names = private_names(nodes)
        reads = (node for node in nodes if isinstance(node, ast.Attribute) and is_private(node.attr))
        found += [(node.lineno, ast.unparse(node)) for node in reads if is_got_privately(node.value, names)]
    return [f"{path}:{line}: reads {words}: a private attribute through two objects" for line, words in sorted(found)]


def outermost(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module and of its classes; so a function comes once, with the functions inside it."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.ClassDef) else (node,)


def private_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The local names in a function for what is got by a private attribute: `rounds` in `rounds = member._rounds`."""
    names: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            names |= {each.id for each, value in pairs if isinstance(each, ast.Name) and is_got_privately(value, ())}
    return names


def is_got_privately(node: ast.expr, names: Container[str]) -> bool:
    """Whether an expression is `a._b`, an item or the result of it (`a._b[0]`, `a._b()`), or one of `names`."""
    while isinstance(node, ast.Subscript | ast.Call | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id in names if isinstance(node, ast.Name) else isinstance(node, ast.Attribute) and is_private(node.attr)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# -- the graph of all imports --------------------------------------------------------------------------------


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """To each file the files of which it imports something, at whatever place in it."""
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        names = (name for _, name in imports(ast.walk(ast.parse(source))) if name.startswith("shoal."))
        graph[path] = {files[-1] for name in names if (files := files_of(name, sources))} - {path}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """Every group of files that import each other, directly or through others (Tarjan's components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(file: str) -> None:
        order[file] = lowest[file] = len(order)
        stack.append(file)
        for target in sorted(graph[file]):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[file] = min(lowest[file], lowest[target])
        if lowest[file] == order[file]:
            circle = [stack.pop()]
            while circle[-1] != file:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append("a circle: " + ", ".join(sorted(circle)))

    for file in graph:
        if file not in order:
            visit(file)
    return found


# -- what importing a module drags in -----------------------------------------------------------------------


def dragged_in(sources: Mapping[str, str], start: str) -> dict[str, str]:
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


def files_of(name: str, sources: Mapping[str, str]) -> list[str]:
    """The files that importing `shoal.a.b.c` runs: each package's __init__ on the way, and the module."""
    parts = name.split(".")[1:]
    prefixes = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [file for prefix in prefixes for file in (f"{prefix}/__init__.py", f"{prefix}.py")]
    return [file for file in candidates if file in sources]
