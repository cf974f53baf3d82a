"""Any causal language model that transformers builds from a config, with its own names for the weights.

Rules:
- Configs only, never code from anywhere: `trust_remote_code` is never passed, and what a config could name is refused
  in manifest/model.py.
- All is fp32; which weights there are is the manifest's word, and a library that makes others of the config is told of.
- A tied weight is one weight, under its first name. What is not trained is the config's, and nobody exchanges it:
  frozen parameters and buffers are made from one seed on every machine, and the manifest names their hash
  (untrained.py).
- What is exported is what transformers itself saves of the model: its files, and its names for them.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.node.base import extra
from shoal.node.base.room import no_room
from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.model import HfSpec, with_floats
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.untrained import saved_buffers
from shoal.protocol.base.errors import LocalError

CONFIG_SEED = 0  # of what a config gives beside the trained weights, should any of it be random
log = logging.getLogger("shoal.models")
MAX_BUFFERS = 1 << 30  # bytes: no manifest names them, and a config may ask for any
BYTES = 256  # without a tokenizer, tokens are bytes
FETCHES_CODE = ("rwkv",)  # types that do it whatever the environment says (extra.py)
NAMES_CODE = (  # how keys begin, after underscores, that name it: transformers would fetch a kernel so named
    *("auto_map", "custom_pipelines", "attn_implementation", "experts_implementation"),
)
LONGEST = (  # what configs call the number of tokens that a model may be given at once
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length"),
)
PROBE = 8  # tokens, which every context holds: with fewer no model is tried
SEEN = 1e-4  # of the largest logit: what is more than roundings
TRIES = 3  # of other tokens: in a mixture of experts a rounding may choose another expert, but not each time


class HfModel(TrainedModel):
    """A transformers model as what is trained here. It draws random numbers if its config has dropout."""

    network: Any  # transformers' or peft's
    can_be_recorded = False  # many look at values on the CPU in the middle of a step

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for `tokens` (B, T)."""
        logits: Tensor = self.network(input_ids=tokens).logits
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """See TrainedModel; in training, with what a mixture of experts wants added for the balance of its router."""
        out = self.network(input_ids=tokens[:, :-1])
        loss = F.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten())
        balance = getattr(out, "aux_loss", None)
        if self.training and isinstance(balance, Tensor):
            loss = loss + self._weight_of_balance() * balance
        return loss

    def arrange(self, options: TrainerOptions) -> None:
        """See TrainedModel."""
        if options.recompute and not getattr(self.network, "supports_gradient_checkpointing", False):
            raise LocalError(
                f"models of type {self._config.model_type} cannot recompute activations: leave out --recompute; with "
                "--micro-batch 1 they take the least memory, and where that does not fit, another --device is needed"
            )
        with quietly():
            if options.recompute:
                self.network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            elif getattr(self.network, "is_gradient_checkpointing", False):
                self.network.gradient_checkpointing_disable()
        for layer in _layers(self.network) if options.compiled else ():
            layer.compile(dynamic=False)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As the network names them, not as ours."""
        named: Iterator[tuple[str, nn.Parameter]] = self.network.named_parameters(prefix, recurse, remove_duplicate)
        return named

    def _weight_of_balance(self) -> float:
        """What the library weighs it by: most models have that from keys of their own, and keep it under two names."""
        for holder in (self.network, self._config.get_text_config()):
            for name in ("router_aux_loss_coef", "aux_loss_coef"):
                if isinstance(weight := getattr(holder, name, None), int | float):
                    return weight
        raise LocalError(
            f"models of type {self._config.model_type} do not say what the balance of their router weighs in the loss: "
            "train without output_router_logits"
        )

    @property
    def _config(self) -> Any:
        return self.network.config


def check_sizes(spec: HfSpec, network: Any) -> int:
    """How many tokens the model knows; LocalError if these are too few, not the run's, or it sees fewer at once.

    LocalError, too, if it holds more beside its weights than any run's may. It may be without numbers.
    """
    longest = most_tokens(network)
    if longest is not None and longest < spec.context:
        raise LocalError(f"model.context is {spec.context}, and the config's model sees {longest} tokens at most")
    if (held := bytes_beside(network)) > MAX_BUFFERS:
        raise LocalError(f"the config's model has {held:,} bytes of buffers, and at most {MAX_BUFFERS:,} here")
    vocab: int = network.config.get_text_config().vocab_size
    if vocab < BYTES:
        raise LocalError(f"the config's vocab_size is {vocab}: a model has {BYTES} tokens or more")
    if spec.is_complete and vocab != spec.vocab:
        raise LocalError(f"the manifest's vocab is {spec.vocab}, and the config's vocab_size {vocab}")
    return vocab


def most_tokens(network: Any) -> int | None:
    """How many tokens the model may be given at once; None if its config does not say.

    Types that count positions from the number of their padding on have fewer than their table has rows.
    """
    config = network.config.get_text_config()
    said = [each for key in LONGEST if isinstance(each := getattr(config, key, None), int) and each > 0]
    if not said:
        return None
    rows = min(said)
    tables = [each for name, each in network.named_modules() if isinstance(each, nn.Embedding) and "position" in name]
    unused = [each.padding_idx + 1 for each in tables if each.padding_idx is not None and each.num_embeddings == rows]
    if unused and hasattr(config, "ngram"):
        return rows - max(unused) - 1  # ProphetNet's streams that predict stand one position further
    return rows - max(unused, default=0)


def bytes_beside(network: nn.Module) -> int:
    """Of all tensors in it that are no parameters: buffers, and what modules keep without saying so."""
    kept = {each for module in network.modules() for each in vars(module).values() if isinstance(each, Tensor)}
    return sum(each.numel() * each.element_size() for each in kept | set(network.buffers()))


def network_of(spec: HfSpec, seed: int) -> nn.Module:
    """transformers' model on the CPU, in fp32."""
    return in_training(seeded(spec, seed))


def skeleton(spec: HfSpec) -> nn.Module:
    """transformers' model without numbers."""
    with torch.device("meta"):
        return in_training(_from_config(spec))


def seeded(spec: HfSpec, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return _from_config(spec)


def network_from(spec: HfSpec, folder: Path) -> nn.Module:
    """transformers' model on the CPU, in fp32, with the weights of a local folder; LocalError unless all are there."""
    network = opened(folder, config_of(spec.table))
    network.train()
    return in_training(network)


def opened(folder: Path, config: Any) -> Any:
    """The model of a folder as transformers opens it, on the CPU, in fp32; LocalError unless it has all weights.

    Buffers that it lacks are those that the config gives, as for the library.
    """
    if not any(folder.glob("*.safetensors")):
        raise LocalError(f"{folder} has no safetensors, and other files of weights are not read: they may hold code")
    with quietly(), in_words(f"cannot open {folder}"):
        network, about = extra.transformers().AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    buffers = {name for name, _ in network.named_buffers()}
    missing = sorted(map(str, about["missing_keys"]))
    lacking = [name for name in missing if name not in buffers]
    lacking += sorted(str(each[0]) for each in about["mismatched_keys"])
    if lacking:
        raise LocalError(f"{folder} lacks the model's {lacking[0]}: it has another head, or is damaged")
    for name in missing:
        log.warning("%s has no %s: it is what the config gives", folder, name)
    return network


def check_is_causal(model: HfModel, length: int) -> None:
    """LocalError if a token's logits depend on the tokens after it: then a loss says nothing, as with BERT.

    Many such models have a class for causal use, causal only if the config says so (`is_decoder`, `attn_type`). What a
    model looks at may depend on the `length` of a text, in tokens.
    """
    was_training = model.training
    model.eval()
    with torch.inference_mode(), quietly(), in_words(f"cannot compute with the run's model on {length} tokens"):
        looks_ahead = all(_looks_ahead(model, length, number) for number in range(TRIES))
    model.train(was_training)
    if looks_ahead:
        raise LocalError(
            f"the config's model, of type {model.network.config.model_type}, looks at tokens that come later: runs "
            "train causal language models, which predict each token from those before it. Where such a type can be "
            'causal, its config says so: is_decoder = true, attn_type = "uni" for xlnet, or attention_type = '
            '"original_full" for big_bird'
        )


def _looks_ahead(model: HfModel, length: int, number: int) -> bool:
    """Whether another last token changes what is predicted before it."""
    tokens = _probe(model, length, rows=2)
    tokens[1, -1] += PROBE + number
    one, other = model(tokens)[:, :-1].float()
    return bool((one - other).abs().max() > SEEN * one.abs().max())


def check_can_be_trained(model: HfModel, length: int) -> None:
    """LocalError if no gradient comes of a text of `length` tokens, as long as the run's are where that can be tried.

    LocalError, too, if training changes what stands still, which members cannot agree on.
    """
    before = {name: each.clone() for name, each in saved_buffers(model.network).items()}
    reached: list[bool] = []

    def seen(weight: Tensor) -> None:
        reached.append(True)
        weight.grad = None  # all of them together would be as large as the model

    weights: list[Any] = [weight for _, weight in model.trained()]
    hooks = [weight.register_post_accumulate_grad_hook(seen) for weight in weights]
    what = f"cannot train the run's model on {length} tokens"
    with torch.random.fork_rng(devices=()), quietly(), in_words(what):
        loss: Any = model.train().loss(_probe(model, length + 1, rows=1))
        loss.backward()
    for hook in hooks:
        hook.remove()
    kind = model.network.config.model_type
    if not reached or not loss.isfinite():
        raise LocalError(f"the config's model, of type {kind}, cannot be trained: its loss is {loss.item():g}")
    for name, each in saved_buffers(model.network).items():
        if not torch.equal(each, before[name]):
            raise LocalError(
                f"the config's model, of type {kind}, changes {name} as it trains, which is no weight: members of a "
                "run could not agree on it"
            )


def check_can_be_opened(folder: Path) -> None:
    """LocalError unless what transformers has saved in `folder` is a causal model for it, which not all types are."""
    try:
        config_of(with_floats(json.loads((folder / "config.json").read_bytes())))
    except LocalError as error:
        raise LocalError(f"what transformers saves of the run's model it cannot open again: {error}") from error


def _probe(model: HfModel, length: int, rows: int) -> Tensor:
    """Rows of the same few tokens again and again, on the model's device."""
    device = next(model.parameters()).device
    return (PROBE + torch.arange(length, device=device) % PROBE)[None].repeat(rows, 1)


def config_of(table: Mapping[str, Any]) -> Any:
    """The library's config of a causal model, from a config.json's content; LocalError, with the reason, if it is none.

    No code that it names is looked at.
    """
    library, kind = extra.transformers(), table.get("model_type")
    if not isinstance(kind, str):
        raise LocalError("the config names no model_type")
    if (kind in FETCHES_CODE or table.get("quantization_config")) and find_spec("kernels"):
        which = f"models of type {kind}" if kind in FETCHES_CODE else "quantized models"
        raise LocalError(f"{which} may fetch code from the hub where the package kernels is installed: uninstall that")
    with quietly(), in_words("does not understand the config"):
        settings = _without_code({key: each for key, each in table.items() if key != "model_type"})
        found = library.AutoConfig.for_model(kind, **settings)
    if type(found) not in library.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise LocalError(
            f"transformers {library.__version__} has no causal language model of type {kind}, but models without a "
            "language head at best: what is trained and served here predicts each token from those before it, as llama "
            "or gpt2 do"
        )
    return found


def _without_code(value: Any) -> Any:
    """A config's value without what names code, at any depth: parts of a model have configs of their own."""
    if isinstance(value, Mapping):
        kept = {key: each for key, each in value.items() if not key.lstrip("_").startswith(NAMES_CODE)}
        return {key: _without_code(each) for key, each in kept.items()}
    return [_without_code(each) for each in value] if isinstance(value, list | tuple) else value


def _from_config(spec: HfSpec) -> nn.Module:
    config = config_of(spec.table)
    with quietly(), in_words("cannot build a causal model of the run's config"):
        network: nn.Module = extra.transformers().AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return network


def in_training(network: Any) -> nn.Module:
    network.config.use_cache = False
    return cast(nn.Module, network)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """The longest list of modules in it: its layers, which are compiled one by one."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return iter(max(lists, key=len, default=()))


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Whatever a library makes of a stranger's numbers, in a sentence."""
    try:
        yield
    except LocalError:
        raise
    except Exception as error:
        if (lack := no_room(error)) is not None:
            raise lack from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise LocalError(f"transformers {extra.transformers().__version__} {what}: {reason}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """What libraries warn of in their own code is nothing that a node's owner could change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
