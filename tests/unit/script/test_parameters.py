"""All names and shapes that torch allows are kept, on the wire and on disk, or refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.run_at_hand import RunAtHand
from torch import nn

from shoal.node.base.home import Home
from shoal.node.client.script.founding import ORIGIN, found, manifest_of
from shoal.node.client.script.module import OwnModule
from shoal.node.client.up.plan import to_toml
from shoal.node.manifest.manifest import decode_manifest, parse_manifest
from shoal.node.manifest.model import CustomSpec
from shoal.node.manifest.tensors import expand
from shoal.node.training.checkpoint.read import load
from shoal.node.training.methods.registry import method_of
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.file import load_state, save_state
from shoal.node.training.state.shape import shape_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.genesis import run_id

NAMES = [
    *("00", "01", "1", "0", "10", "٣", "3", "#", "##", "a#b", "#1", "outer", "exp_avg", "weight", "model"),
    *(
        "a b",
        "a/b",
        "/etc/x",
        "C:\\dir",
        "ü",
        "重み",
        "🙂",
        "it's",
        '"quoted"',
        "[table]",
        "a=b",
        "-",
        "--x",
        "x" * 200,
    ),
]


class AnyNames(nn.Module):
    """A module whose parameters and submodules have any names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Module()
        for name in names:
            inner = nn.Module()
            inner.register_parameter(name, nn.Parameter(torch.randn(2)))
            inner.momentum = nn.Linear(1, 1)
            layers.add_module(name, inner)
        self.add_module("layers", layers)
        self.add_module("outer", layers)  # tied
        for name in names:
            if name != "outer":
                self.register_parameter(name, nn.Parameter(torch.randn(3, 1)))
        self.register_parameter("scalar", nn.Parameter(torch.tensor(2.0)))
        self.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
        self.register_parameter("deep", nn.Parameter(torch.ones([1] * 12)))


def own(module: nn.Module) -> OwnModule:
    return OwnModule(module, torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=0.1))


def plain(**parameters: Any) -> nn.Module:
    module = nn.Module()
    for name, each in parameters.items():
        module.register_parameter(name, each)
    return module


AUTHOR = PeerId("12D3KooWAuthor")


class Client:
    """A node that founds all, and keeps nothing of it."""

    def status(self) -> dict[str, str]:
        return {"peer": AUTHOR}

    def create_run(self, text: str, train: bool, checkpoints: list[str], nonce: str) -> dict[str, str]:
        return {"run": run_id(parse_manifest(text).digest, AUTHOR, bytes.fromhex(nonce)).hex()}


@pytest.mark.parametrize("names", [NAMES, ["00", "01"], ["1", "01"], ["01", "1", "001"], ["4096", "4097", "99999"]])
def test_names_and_shapes_are_kept_on_the_wire_and_on_disk(names: list[str], tmp_path: Path) -> None:
    module = AnyNames(names)
    ours = own(module)
    wanted = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    manifest = manifest_of(ours, {"name": "any"})
    assert isinstance(manifest.model, CustomSpec)
    for read in (decode_manifest(manifest.canonical()), parse_manifest(to_toml(manifest))):
        assert read == manifest
        assert isinstance(read.model, CustomSpec)
        assert list(expand(read.model.tensors)) == list(wanted.items())
    ours.check_fits(manifest.model)

    client: Any = Client()
    home = Home(tmp_path).create()
    run = found(client, home, ours, {"name": "any"})
    (written,) = (home.run_folder(run) / ORIGIN).iterdir()
    assert torch.equal(load(written).vectors["parameters"], ours.read())
    from safetensors.torch import load_file

    held = load_file(written / "model.safetensors")
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    ours.load(torch.zeros(ours.layout.size))
    module.load_state_dict(held, strict=False)
    assert held.keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())


def test_a_name_like_those_of_the_outer_state_hides_nothing(tmp_path: Path) -> None:
    """A module `outer` with a part `momentum`, beside a parameter that has a momentum of that name."""
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(torch.ones(2)))
    module.outer = nn.Module()
    module.outer.add_module("momentum", plain(weight=nn.Parameter(torch.full((2,), 7.0))))
    ours = own(module)
    manifest = manifest_of(ours, {"name": "a"})
    shape = shape_of(manifest, ours.layout)
    agreed, _ = method_of(manifest, ours.layout).begin(ours.read())
    save_state(CommittedState(shape, agreed).current, tmp_path / "state")
    assert torch.equal(load_state(tmp_path / "state", shape).current.vectors["parameters"], ours.read())


def test_such_a_module_is_trained() -> None:
    module = AnyNames(NAMES)
    run = RunAtHand("", {"name": "a", "method": {"inner_steps": 2, "batch": 1}, "rounds": {"last": 2}})
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    run.wrap(optimizer, module)
    while not run.is_over:
        optimizer.zero_grad()
        torch.stack([each.square().sum() for each in module.parameters()]).sum().backward()
        optimizer.step()
    assert run.loop is not None
    assert torch.equal(torch.cat([each.detach().flatten() for each in module.parameters()]), run.loop.theta)


@pytest.mark.parametrize(
    "frozen",
    [
        torch.tensor(True),
        torch.arange(3),
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.empty(0),
        torch.tensor(1.0),
        torch.ones(1).expand(4),
        torch.ones(4, 4).t()[::2],
    ],
    ids=str,
)
def test_what_is_frozen_may_be_of_any_type(frozen: torch.Tensor) -> None:
    def module() -> nn.Module:
        return plain(weight=nn.Parameter(torch.ones(2)), still=nn.Parameter(frozen, requires_grad=False))

    own(module()).check_fits(own(module()).spec())


base = torch.zeros(8)
with torch.inference_mode():
    inferring = nn.Linear(1, 1)


def lazy() -> nn.Module:
    return nn.LazyLinear(3)


def dotted(name: str) -> nn.Module:
    """A module `a` with a part `b`, and another by this name."""
    module = nn.Module()
    module.a = nn.Module()
    module.a.b = nn.Linear(2, 2)
    module._modules[name] = nn.Linear(3, 3)
    return module


def test_frozen_parameters_may_have_numbers_in_common() -> None:
    still = [nn.Parameter(base[:4], requires_grad=False), nn.Parameter(base[2:], requires_grad=False)]
    own(plain(w=nn.Parameter(torch.ones(1)), a=still[0], b=still[1])).spec()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lazy": (lazy, "weight has no shape yet: give the module a batch"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "weight is on the meta device"),
    "meta, frozen": (
        lambda: plain(w=nn.Parameter(torch.ones(1)), x=nn.Parameter(torch.ones(1, device="meta"), requires_grad=False)),
        "x is on the meta device",
    ),
    "complex": (
        lambda: plain(z=nn.Parameter(torch.ones(2, dtype=torch.complex64))),
        "z is torch.complex64.*view_as_real",
    ),
    "float64": (lambda: plain(w=nn.Parameter(torch.ones(2).double())), "w is torch.float64: keep the weights in fp32"),
    "half": (lambda: plain(w=nn.Parameter(torch.ones(2).half())), "w is torch.float16: keep the weights in fp32"),
    "expanded": (lambda: plain(w=nn.Parameter(torch.ones(1).expand(4))), r"w is expanded.*clone\(\)"),
    "sparse": (lambda: plain(w=nn.Parameter(torch.eye(3).to_sparse())), "w is torch.sparse_coo: make it dense"),
    "inference": (lambda: inferring, "weight was made in inference mode"),
    "overlapping": (
        lambda: plain(a=nn.Parameter(base[:4]), b=nn.Parameter(base[5:]), c=nn.Parameter(base[3:5])),
        "parameters a and c have numbers in common",
    ),
    "empty": (lambda: plain(w=nn.Parameter(torch.ones(0))), "are all empty"),
    "a view": (
        lambda: plain(a=nn.Parameter(base[:4]), b=nn.Parameter(base[2:3].view(torch.int16), requires_grad=False)),
        "parameters a and b have numbers in common",
    ),
    "one name for two": (lambda: dotted("a.b"), "two parameters are named a.b.weight"),
    "unprintable": (
        lambda: plain(**{"a\nb": nn.Parameter(torch.ones(1))}),
        r"'a\\nb' has characters that cannot be shown",
    ),
    "surrogate": (lambda: plain(**{"\ud800": nn.Parameter(torch.ones(1))}), "has characters that cannot be shown"),
    "reserved": (lambda: plain(__metadata__=nn.Parameter(torch.ones(1))), "__metadata__ means something else"),
    "long": (lambda: plain(**{"x" * 1001: nn.Parameter(torch.ones(1))}), "is longer than 1000 characters"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused_by_its_name_with_what_to_do(kind: str) -> None:
    make, words = REFUSED[kind]
    with pytest.raises(LocalError, match=words):
        own(make())


def test_parameters_of_one_storage_that_do_not_overlap_are_several() -> None:
    flat = torch.arange(12.0).view(3, 4)
    ours = own(plain(left=nn.Parameter(flat[:, :2]), right=nn.Parameter(flat[:, 2:])))
    ours.load(torch.arange(12.0) + 1)
    assert torch.equal(ours.read(), torch.arange(12.0) + 1)


def test_too_many_names_are_refused_with_what_to_do() -> None:
    module = plain(**{f"{n}-{'x' * 200}": nn.Parameter(torch.ones(1)) for n in range(400)})
    with pytest.raises(LocalError, match="give them shorter names"):
        manifest_of(own(module), {"name": "a"})
