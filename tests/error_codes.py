"""Which codes of errors and warnings the source can give, found by reading it, as pure functions over source text.

A code is given wherever a function, or a class with such a field, has a parameter `code: str`, where a class of errors
has an attribute `code`, where a log line has `extra={"code": ...}`, and in a dict with "code" and "words". What is
given there must be spelled out: a text, a constant, a choice between such, or a value of a module's dict `CODES`. A
parameter or an attribute of the name `code` is handed on from somewhere else, where it was spelled out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ERRORS = "ShoalError"  # the base class
GENERAL = ("LocalError", "UsageError")  # whose own code tells nothing: whoever raises them should name another
LEVELS = ("warning", "error")  # of log lines that must have a code, unless they have an exception
CHOOSERS = "_code"  # beginning of the names of functions that return a code
FOREIGN = ("node/inference/http/", "node/inference/remote/asking/")  # which answer in OpenAI's codes

Node = ast.AST
Place = tuple[str, int]  # path, line


@dataclass
class Module:
    """A source file, and what of it counts here."""

    path: str
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (path of the module, name there)
    takers: dict[str, int] = field(default_factory=dict)  # name of a function or class -> which parameter is `code`
    errors: set[str] = field(default_factory=set)  # classes of errors


@dataclass
class Found:
    """All codes with the places that give them, and what breaks the rules."""

    codes: dict[str, list[Place]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    bare: list[Place] = field(default_factory=list)  # where a general error is raised without a code of its own


def codes_in(sources: Mapping[str, str]) -> Found:
    """The codes of all files, by path from the root of the tree."""
    modules = {path: _module(path, source) for path, source in sources.items()}
    _add_errors(modules)
    found = Found()
    for module in modules.values():
        if not module.path.startswith(FOREIGN):
            _Reader(module, modules, found).visit(module.tree)
    return found


def _module(path: str, source: str) -> Module:
    module = Module(path, ast.parse(source))
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                module.constants |= _bound(target, node.value)
    for each in ast.walk(module.tree):
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("shoal."):
            where = str(each.module).removeprefix("shoal.").replace(".", "/") + ".py"
            module.imported |= {alias.asname or alias.name: (where, alias.name) for alias in each.names}
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [(one.arg, one.annotation) for one in each.args.args if one.arg != "self"]
            _note_taker(module, each.name, names)
        if isinstance(each, ast.ClassDef):
            fields = [one for one in each.body if isinstance(one, ast.AnnAssign)]
            _note_taker(module, each.name, [(ast.unparse(one.target), one.annotation) for one in fields])
    return module


def _note_taker(module: Module, name: str, parameters: Sequence[tuple[str, ast.expr | None]]) -> None:
    for number, (parameter, annotation) in enumerate(parameters):
        if parameter == "code" and annotation is not None and ast.unparse(annotation) == "str":
            module.takers[name] = number


def _add_errors(modules: Mapping[str, Module]) -> None:
    """Let the classes of errors be takers: by their own `__init__`, or as the class that they derive from."""
    kinds: dict[str, int | None] = {ERRORS: 1}
    known = 0
    while len(kinds) > known:
        known = len(kinds)
        for module in modules.values():
            for each in _classes(module):
                bases = [base.id for base in each.bases if isinstance(base, ast.Name) and base.id in kinds]
                if bases and each.name not in kinds:
                    kinds[each.name] = _own_position(each, kinds[bases[0]])
    for module in modules.values():
        own = {each.name for each in _classes(module)}
        module.errors = own & kinds.keys()
        module.takers |= {name: at for name in own | module.imported.keys() if (at := kinds.get(name)) is not None}


def _own_position(kind: ast.ClassDef, inherited: int | None) -> int | None:
    """Which argument of the class is the code; None if it takes none."""
    for each in kind.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            taken = [one.arg == "code" and ast.unparse(one.annotation or one) == "str" for one in each.args.args[1:]]
            return taken.index(True) if True in taken else None
    return inherited


def _classes(module: Module) -> list[ast.ClassDef]:
    return [each for each in ast.walk(module.tree) if isinstance(each, ast.ClassDef)]


class _Reader(ast.NodeVisitor):
    def __init__(self, module: Module, modules: Mapping[str, Module], found: Found) -> None:
        self._module, self._modules, self._found = module, modules, found
        self._functions: list[ast.AST] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> None:
        name = getattr(self._functions[-1], "name", "")
        if name.startswith(CHOOSERS) and node.value is not None:
            for each in self._resolve(node.value):
                if isinstance(each, str):
                    self._add(each, node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name in self._module.takers.keys() | self._module.errors:
            for each in node.body:
                match each:
                    case ast.Assign(targets=[ast.Name(id="code")], value=value):
                        self._take(value)
                    case ast.AnnAssign(target=ast.Name(id="code"), value=ast.expr() as value):
                        self._take(value)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        match node.exc:
            case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]) if name in GENERAL:
                self._found.bare.append((self._module.path, node.lineno))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [ast.unparse(each) for each in node.targets]
        if targets == ["CODES"] and isinstance(node.value, ast.Dict):
            for each in node.value.values:
                self._take(each)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        said = {
            each.value: value
            for each, value in zip(node.keys, node.values, strict=True)
            if isinstance(each, ast.Constant)
        }
        if "code" in said and said.keys() & {"words", "msg"}:
            self._take(said["code"])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        named = {each.arg: each.value for each in node.keywords}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        at = self._position(name)
        if at is not None and "code" in named:
            self._take(named["code"])
        elif at is not None and len(node.args) > at and not isinstance(node.args[at], ast.Starred):
            self._take(node.args[at])
        extra = named.get("extra")
        if isinstance(extra, ast.Dict):
            for key, value in zip(extra.keys, extra.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code":
                    self._take(value)
        elif name in LEVELS and ast.unparse(node.func).startswith("log") and "exc_info" not in named:
            self._found.faults.append(f"{self._module.path}:{node.lineno}: a {name} of the log has no code")
        self.generic_visit(node)

    def _position(self, name: str) -> int | None:
        """Which argument of a call is the code; None if the function or class has none."""
        if name in self._module.takers:
            return self._module.takers[name]
        path, there = self._module.imported.get(name, ("", ""))
        return self._modules[path].takers.get(there) if path in self._modules else None

    def _take(self, value: ast.expr) -> None:
        for each in self._resolve(value):
            if isinstance(each, str):
                self._add(each, value)
            else:
                words = f"{self._module.path}:{value.lineno}: this code is not spelled out: {ast.unparse(each)}"
                self._found.faults.append(words)

    def _add(self, code: str, node: ast.stmt | ast.expr) -> None:
        self._found.codes.setdefault(code, []).append((self._module.path, node.lineno))

    def _resolve(self, value: ast.expr) -> Iterator[str | ast.expr]:
        match value:
            case ast.Constant(value=str(text)):
                yield from [text] if text else []
            case ast.IfExp(body=body, orelse=otherwise):
                yield from [*self._resolve(body), *self._resolve(otherwise)]
            case ast.BoolOp(values=values):
                yield from (each for one in values for each in self._resolve(one))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="CODES"), attr="get"), args=[_, usual]):
                yield from self._resolve(usual)
            case ast.Attribute(attr="code") | ast.Subscript(value=ast.Name(id="CODES")):
                pass
            case ast.Subscript(slice=ast.Constant(value="code")):  # of an answer
                pass
            case ast.Call(func=ast.Name(id=name)) if name.startswith(CHOOSERS):
                pass
            case ast.Name(id=name):
                yield from self._named(name, value)
            case _:
                yield value

    def _named(self, name: str, value: ast.expr) -> Iterator[str | ast.expr]:
        here = [bound for each in self._functions for bound in _assigned(each, name)]
        if here:
            yield from (each for one in here for each in self._resolve(one) if each is not value)
        elif name in self._module.constants:
            yield from self._resolve(self._module.constants[name])
        elif (where := self._module.imported.get(name)) and where[0] in self._modules:
            there = self._modules[where[0]].constants.get(where[1])
            yield from self._resolve(there) if isinstance(there, ast.Constant) else [value]
        elif name != "code":
            yield value


def _assigned(function: ast.AST, name: str) -> Iterator[ast.expr]:
    """What a function binds to a name; not what it unpacks from elsewhere."""
    for each in ast.walk(function):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                bound = _bound(target, each.value).get(name)
                yield from [bound] if bound is not None else []


def _bound(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return {one.id: two for one, two in pairs if isinstance(one, ast.Name)}
    return {}


def listed(places: Iterable[Place]) -> str:
    """Places, for a message."""
    return ", ".join(f"{path}:{line}" for path, line in places)
