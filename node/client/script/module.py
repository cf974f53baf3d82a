"""A user's module with its optimizer as the model of a run: reads and loads the weights, keeps the optimizer's moments.

Trained parameters are exchanged, in fp32, in the order of `named_parameters()`. Frozen parameters are not, and must be
the same everywhere: the manifest has their hash. Buffers, such as the running means of a BatchNorm, are each machine's
own: they are neither averaged nor sent.

Before a run is created or entered all parameters are checked: each must be a whole tensor that shares no memory, of a
type that can be exchanged. The error names the parameter, and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn

from shoal.node.client.script.state_weights import StateWeights, shown
from shoal.node.manifest.model import CustomSpec
from shoal.node.manifest.tensors import expand, first_difference, fold, problem_of
from shoal.node.training.models.layout import Layout, trained
from shoal.node.training.trainer import inner_state
from shoal.node.training.trainer.inner_state import halves
from shoal.protocol.base.errors import LocalError

LAUNCHERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")  # they wrap optimizers and schedulers


class OwnModule:
    """A script's own `module` with the `optimizer` that trains it; LocalError if the two do not belong together."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if (
            not isinstance(module, nn.Module)
            or not hasattr(optimizer, "param_groups")
            or not hasattr(optimizer, "step")
        ):
            given = f"{type(optimizer).__name__}, {type(module).__name__}"
            raise LocalError(
                f"`wrap` takes an optimizer and the module whose parameters it steps, not ({given})",
                code="script-misused",
            )
        self.module: nn.Module = getattr(module, "_orig_mod", module)  # what torch.compile was given
        self.optimizer = optimizer
        self.steps = 0  # of the optimizer, since `wrap`
        self.has_private = False  # whether the run's method keeps vectors beside the moments
        check_parameters(self.module)
        weights = dict(trained(self.module))
        _check(weights, optimizer)
        self.device = next(iter(weights.values())).device
        self.layout = Layout.of(self.module)
        self._were = {name: (each, each.requires_grad) for name, each in self.module.named_parameters()}
        self._frozen = self._digests()
        self._rounds = 0  # in which it was trained
        self._were_stepped = _stepped(optimizer)
        self._weights = tuple(weights.values())
        self._state_weights = StateWeights(optimizer, weights, self.module)

    def spec(self) -> CustomSpec:
        """The module as a manifest describes it."""
        shapes = {place.name: place.shape for place in self.layout}
        return CustomSpec(name="custom", tensors=fold(shapes), frozen=self.frozen())

    def check_fits(self, spec: CustomSpec) -> None:
        """LocalError, naming the first tensor that differs, unless this is the run's model."""
        ours = {place.name: place.shape for place in self.layout}
        if difference := first_difference(ours, dict(expand(spec.tensors))):
            raise LocalError(
                f"this module is not the run's: {difference}. Build it as the run's founder does", code="other-model"
            )
        if spec.frozen != self.frozen():
            raise LocalError(
                "the module's frozen parameters are not those of the run's founder: load the same weights before",
                code="other-model",
            )

    def check_unchanged(self) -> None:
        """LocalError if other parameters are trained now than at `wrap`."""
        now = dict(self.module.named_parameters())
        if added := next((name for name in now if name not in self._were), None):
            raise LocalError(
                f"{added} has come since `wrap`: a run trains the same parameters to its end, so give the module all "
                "of them before",
                code="script-changed",
            )
        for name, (weight, was_trained) in self._were.items():
            if name not in now or now[name] is not weight:
                what = "another parameter than" if name in now else "no parameter of the module any more, as it was"
                raise LocalError(
                    f"{name} is {what} at `wrap`: the optimizer steps the one that was there, so write into that "
                    "(`with torch.no_grad(): weight.copy_(...)`), or wrap again",
                    code="script-changed",
                )
            if weight.requires_grad != was_trained:
                what = "frozen" if was_trained else "trained"
                raise LocalError(
                    f"{name} is {what} since `wrap`: a run trains the same parameters to its end, so set requires_grad "
                    "before `wrap`, and found another run for another choice",
                    code="script-changed",
                )
        if _stepped(self.optimizer) != self._were_stepped:
            raise LocalError(
                "the optimizer's parameters are others than at `wrap`: a run trains the same ones to its end, so call "
                "add_param_group before `wrap`",
                code="script-changed",
            )

    def check_still(self) -> None:
        """A round was trained: LocalError if a frozen parameter has moved since `wrap`.

        All of them are hashed for that, so it is checked only after the first round, the second, the fourth and so on.
        """
        self._rounds += 1
        if self._rounds & (self._rounds - 1):
            return
        for (name, then), (_, now) in zip(self._frozen, self._digests(), strict=True):
            if then != now:
                raise LocalError(
                    f"the frozen parameter {name} has moved since `wrap`: those are the same for all members, who "
                    "compare them when they come. Keep what each machine changes by itself, as a mean of the weights, "
                    "as a buffer (register_buffer), or outside of the module",
                    code="script-changed",
                )

    def frozen(self) -> str:
        """The BLAKE3 hash (hex) of the frozen parameters' names, types, shapes and bytes at `wrap`; empty for none."""
        return self._frozen[-1][1] if self._frozen else ""

    def _digests(self) -> list[tuple[str, str]]:
        """Each frozen parameter's name, with the hash of all up to and including it."""
        digests: list[tuple[str, str]] = []
        hasher = blake3()
        for name, weight in self.module.named_parameters():
            if weight.requires_grad:
                continue
            hasher.update(f"{name} {weight.dtype} {tuple(weight.shape)}\0".encode(errors="backslashreplace"))
            try:
                plain = weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            except (RuntimeError, TypeError, NotImplementedError) as error:
                raise LocalError(
                    f"the frozen parameter {name} ({type(weight.data).__name__}, {weight.dtype}) has no bytes that "
                    "members could compare: keep it as a buffer, or outside of the module",
                    code="script-module",
                ) from error
            if plain.size:
                hasher.update(plain.data)
            digests.append((name, str(hasher.hexdigest())))
        return digests

    def load(self, theta: Tensor, *, is_end: bool = False) -> None:
        """Load the weights (d,); with `is_end` they are the run's result."""
        self._state_weights.load(tuple(self.layout.views(theta).values()), is_end=is_end)

    def read(self, out: Tensor | None = None) -> Tensor:
        """A copy of the weights (d,) that the optimizer shows (`shown`), on the CPU, in `out` if given."""
        with shown(self.optimizer, self._weights):
            return self.layout.read(self.module, out)

    def stepped(self) -> None:
        """The optimizer has made a step."""
        self.steps += 1
        self._state_weights.stepped()

    def store(self, out: Tensor) -> None:
        """Write Adam's moments to `out`, for this worker's successor; a script keeps other optimizers' state itself."""
        if self._is_adam:
            inner_state.store([self.optimizer], self.module, self.layout, out)
        elif self.has_private:
            out[0] = self.steps  # the method's private vectors follow, behind moments that are zero

    def restore(self, vector: Tensor) -> None:
        """Load Adam's moments from `vector`, unless the script has loaded a state into its optimizer."""
        if not self._is_adam or self.optimizer.state or not halves(vector, self.layout.size)["exp_avg_sq"].any():
            return
        inner_state.restore([self.optimizer], self.module, self.layout, vector)
        for group in self.optimizer.param_groups:
            if not group.get("capturable") and not group.get("fused"):
                for weight in filter(self.optimizer.state.get, group["params"]):
                    self.optimizer.state[weight]["step"] = self.optimizer.state[weight]["step"].cpu()

    @property
    def _is_adam(self) -> bool:
        groups = self.optimizer.param_groups
        kinds = (torch.optim.Adam, torch.optim.AdamW)  # exactly these: a subclass may keep more state
        return type(self.optimizer) in kinds and not any(group["amsgrad"] for group in groups)


def unwrapped(given: Any, what: str) -> Any:
    """The `what` ("optimizer", "scheduler") inside the wrapper of a launcher library, or `given` itself.

    Other objects with an optimizer inside, such as Lookahead, are optimizers of their own and stay as they are.
    """
    while type(given).__module__.partition(".")[0] in LAUNCHERS:
        given = getattr(given, what)
    return given


def _check(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    if not weights:
        raise LocalError("the module has no parameters that are trained", code="script-module")
    if not any(weight.numel() for weight in weights.values()):
        raise LocalError(
            "the module's trained parameters are all empty: there is nothing to train", code="script-module"
        )
    stepped = _stepped(optimizer)
    for name, weight in weights.items():
        if weight not in stepped:
            raise LocalError(
                f"{name} is in no group of the optimizer: add it, or freeze it by requires_grad_(False)",
                code="script-module",
            )
    if stepped - set(weights.values()):
        raise LocalError(
            "the optimizer steps parameters that are not the module's: one module has one optimizer",
            code="script-module",
        )


def _stepped(optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    return set(chain.from_iterable(group["params"] for group in optimizer.param_groups))


# -- which modules a run can train -------------------------------------------------------------------------


def check_parameters(module: nn.Module) -> None:
    """LocalError for the first parameter that a run cannot train or compare."""
    named: dict[str, nn.Parameter] = {}
    for name, weight in module.named_parameters():
        if name in named:
            raise LocalError(
                f"two parameters are named {name}: a name with a dot in it is that of a part's part, too",
                code="script-module",
            )
        named[name] = weight
    for name, weight in named.items():
        if problem := _problem(name, weight):
            raise LocalError(
                f"the parameter {name if name.isprintable() else repr(name)} {problem}", code="script-module"
            )
    _check_apart(named)


def _problem(name: str, weight: nn.Parameter) -> str:
    """Why the parameter cannot be in a run, and what to do; empty if it can."""
    if isinstance(weight, nn.UninitializedParameter):
        return "has no shape yet: give the module a batch before `wrap`"
    if weight.is_meta:
        return "is on the meta device, without numbers: load the weights before `wrap` (to_empty, load_state_dict)"
    if not weight.requires_grad:
        return ""
    if name_problem := problem_of(name):
        return f"{name_problem}: register it under another name"
    if (kind := type(weight.data)) is not Tensor:
        return (
            f"is a {kind.__name__}: what is trained in a run are plain tensors, whole ones (no shards, not quantised)"
        )
    if weight.layout != torch.strided:
        return f"is {weight.layout}: make it dense (to_dense)"
    if weight.is_inference():
        return "was made in inference mode, and nothing may change it: make the module outside of it"
    if weight.is_complex():
        return f"is {weight.dtype}: keep torch.view_as_real of it as the parameter, and view_as_complex to compute"
    if weight.dtype != torch.float32:
        return f"is {weight.dtype}: keep the weights in fp32, and compute under torch.autocast"
    if any(size > 1 and not stride for size, stride in zip(weight.shape, weight.stride(), strict=True)):
        return "is expanded, so that several of its numbers are one: use a clone() of it"
    return ""


def _check_apart(named: dict[str, nn.Parameter]) -> None:
    """LocalError if a trained parameter shares numbers with another one.

    If both are trained, these numbers would be stepped and averaged twice; if the other is frozen, it would move.
    """
    by_storage: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, weight in sorted(named.items(), key=lambda each: not each[1].requires_grad):
        is_plain = type(weight.data) is Tensor and weight.layout == torch.strided
        if is_plain and weight.numel():
            by_storage.setdefault(weight.untyped_storage().data_ptr(), []).append((name, weight))
    for sharing in by_storage.values():
        if len(sharing) > 1 and sharing[0][1].requires_grad and (pair := _overlapping(sharing)):
            raise LocalError(
                f"the parameters {pair[0]} and {pair[1]} have numbers in common: make them one parameter, under both "
                "names if need be, or give each its own (clone)",
                code="script-module",
            )


def _overlapping(sharing: Sequence[tuple[str, nn.Parameter]]) -> tuple[str, str] | None:
    """The names of the first two parameters of one storage that overlap; `sharing` has the trained ones first."""
    unit = min(weight.element_size() for _, weight in sharing)  # in bytes; sizes of types are multiples of each other
    owners = torch.zeros(sharing[0][1].untyped_storage().nbytes() // unit, dtype=torch.int32)
    names: list[str] = []
    for name, weight in sharing:
        each = weight.element_size() // unit
        strides = [each * stride for stride in weight.stride()]
        place = owners.as_strided((*weight.shape, each), (*strides, 1), each * weight.storage_offset())
        if earlier := int(place.max()):
            return names[earlier - 1], name
        if weight.requires_grad:
            names.append(name)
            place.fill_(len(names))
    return None
