"""Any causal language model that transformers builds from a config, with transformers' names for the weights.

Rules:
- Only configs are taken, and never code: `trust_remote_code` is never passed, and node/manifest/model.py refuses config
  keys that could name code.
- All weights are fp32. The manifest lists the trained tensors; if the installed transformers makes others from the
  config, that is an error.
- A tied weight is one weight, under its first name. Frozen parameters and buffers are not exchanged: every member makes
  them from the config and one seed, or has them in a folder of weights, and the manifest has their hash. So all members
  train the same model, and an exported model is complete.
- An exported model has the files and names with which transformers itself saves it.
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
from blake3 import blake3
from torch import Tensor, nn

from shoal.node.base import extra
from shoal.node.base.room import no_room
from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.model import HfSpec, with_floats
from shoal.node.training.models.kind import TrainedModel
from shoal.protocol.base.errors import LocalError

CONFIG_SEED = 0  # for frozen weights and buffers that transformers initialises at random
log = logging.getLogger("shoal.models")
MAX_BUFFERS = 1 << 30  # bytes; a config could ask for any number, and manifests do not list buffers
BYTES = 256  # without a tokenizer, tokens are bytes
FETCHES_CODE = ("rwkv",)  # types for which transformers fetches code whatever the environment says (extra.py)
NAMES_CODE = (  # prefixes of keys, after underscores, that name code, such as a kernel that transformers would fetch
    *("auto_map", "custom_pipelines", "attn_implementation", "experts_implementation"),
)
CONTEXT_KEYS = (  # keys of configs for the longest input in tokens
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length"),
)
PROBE = 8  # different tokens in a probe; every context holds so many
ROUNDING = 1e-4  # share of the largest logit up to which a difference may be a rounding
TRIES = 3  # with other tokens: in a mixture of experts a rounding may choose another expert, but not every time


class HfModel(TrainedModel):
    """A transformers model as a TrainedModel. It draws random numbers if its config has dropout."""

    network: Any  # of transformers or peft
    can_be_recorded = False  # many of these models read values on the CPU within a step

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for `tokens` (B, T)."""
        logits: Tensor = self.network(input_ids=tokens).logits
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """See TrainedModel; in training, a mixture of experts adds the loss that balances its router."""
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
                "--micro-batch 1 they take the least memory, and where that does not fit, another --device is needed",
                code="model-unsupported",
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
        """Parameters under the network's own names, without a prefix for this wrapper."""
        named: Iterator[tuple[str, nn.Parameter]] = self.network.named_parameters(prefix, recurse, remove_duplicate)
        return named

    def _weight_of_balance(self) -> float:
        """The weight of the balancing loss, under one of the two names that transformers has for it."""
        for holder in (self.network, self._config.get_text_config()):
            for name in ("router_aux_loss_coef", "aux_loss_coef"):
                if isinstance(weight := getattr(holder, name, None), int | float):
                    return weight
        raise LocalError(
            f"models of type {self._config.model_type} do not say what the balance of their router weighs in the loss: "
            "train without output_router_logits",
            code="model-unsupported",
        )

    @property
    def _config(self) -> Any:
        return self.network.config


def saved_buffers(network: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers by name: those that are saved in files."""
    saved = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in saved}


def untrained(network: nn.Module) -> dict[str, Tensor]:
    """All tensors by name that are saved but not trained: frozen parameters and persistent buffers."""
    frozen = {name: weight for name, weight in network.named_parameters() if not weight.requires_grad}
    return {**frozen, **saved_buffers(network)}


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """The hash, in hex, of tensors and their names; weights are hashed as fp32, whatever type their files have."""
    hasher = blake3(derive_key_context="shoal v1 frozen weights", max_threads=blake3.AUTO)
    for name, tensor in sorted(tensors.items()):
        head = f"{name} {list(tensor.shape)}".encode()
        hasher.update(len(head).to_bytes(4, "little") + head)
        numbers = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
        hasher.update(numbers.contiguous().reshape(-1).view(torch.uint8).numpy().data.cast("B"))
    return str(hasher.hexdigest())


def check_sizes(spec: HfSpec, network: Any) -> int:
    """Checks vocabulary, context and buffers of a network, which may be without weights; returns the vocabulary's size.

    Raises LocalError if the vocabulary is too small or not the run's, if the model's longest input is shorter than the
    run's context, or if its buffers are too large.
    """
    longest = most_tokens(network)
    if longest is not None and longest < spec.context:
        raise LocalError(
            f"model.context is {spec.context}, and the config's model sees {longest} tokens at most",
            code="manifest-wrong",
        )
    if (held := bytes_beside(network)) > MAX_BUFFERS:
        raise LocalError(
            f"the config's model has {held:,} bytes of buffers, and at most {MAX_BUFFERS:,} here", code="manifest-wrong"
        )
    vocab: int = network.config.get_text_config().vocab_size
    if vocab < BYTES:
        raise LocalError(
            f"the config's vocab_size is {vocab}: a model has {BYTES} tokens or more", code="manifest-wrong"
        )
    if spec.is_complete and vocab != spec.vocab:
        raise LocalError(
            f"the manifest's vocab is {spec.vocab}, and the config's vocab_size {vocab}", code="manifest-wrong"
        )
    return vocab


def most_tokens(network: Any) -> int | None:
    """The longest input in tokens; None if the config does not say.

    Some types number positions from their padding index on: then the table of positions has unused rows.
    """
    config = network.config.get_text_config()
    said = [each for key in CONTEXT_KEYS if isinstance(each := getattr(config, key, None), int) and each > 0]
    if not said:
        return None
    rows = min(said)
    tables = [each for name, each in network.named_modules() if isinstance(each, nn.Embedding) and "position" in name]
    unused = [each.padding_idx + 1 for each in tables if each.padding_idx is not None and each.num_embeddings == rows]
    if unused and hasattr(config, "ngram"):
        return rows - max(unused) - 1  # ProphetNet's predicting streams are one position ahead
    return rows - max(unused, default=0)


def bytes_beside(network: nn.Module) -> int:
    """Bytes of all tensors that are not parameters: buffers, and plain tensors that modules hold as attributes."""
    kept = {each for module in network.modules() for each in vars(module).values() if isinstance(each, Tensor)}
    return sum(each.numel() * each.element_size() for each in kept | set(network.buffers()))


def network_of(spec: HfSpec, seed: int) -> nn.Module:
    """transformers' model on the CPU, in fp32, initialised from `seed`."""
    return in_training(seeded(spec, seed))


def skeleton(spec: HfSpec) -> nn.Module:
    """transformers' model without weights."""
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
    """The model in a folder as transformers opens it, on the CPU, in fp32; LocalError if weights are missing.

    Missing buffers are initialised from the config, as transformers does.
    """
    if not any(folder.glob("*.safetensors")):
        raise LocalError(
            f"{folder} has no safetensors, and other files of weights are not read: they may hold code",
            code="weights-missing",
        )
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
        raise LocalError(
            f"{folder} lacks the model's {lacking[0]}: it has another head, or is damaged", code="checkpoint-damaged"
        )
    for name in missing:
        log.warning("%s has no %s: it is what the config gives", folder, name, extra={"code": "buffer-from-config"})
    return network


def check_is_causal(model: HfModel, length: int) -> None:
    """LocalError if logits depend on later tokens, as in BERT: then the loss of the next token is meaningless.

    Some of these types have a causal mode, which the config must choose (`is_decoder`, `attn_type`). `length` is that
    of the probe in tokens, as attention may differ for long texts.
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
            '"original_full" for big_bird',
            code="model-unsupported",
        )


def _looks_ahead(model: HfModel, length: int, number: int) -> bool:
    """Whether another last token changes the predictions before it."""
    tokens = _probe(model, length, rows=2)
    tokens[1, -1] += PROBE + number
    one, other = model(tokens)[:, :-1].float()
    return bool((one - other).abs().max() > ROUNDING * one.abs().max())


def check_can_be_trained(model: HfModel, length: int) -> None:
    """LocalError if a text of `length` tokens gives no gradient or no finite loss.

    Also if training changes saved buffers: members could not agree on these.
    """
    before = {name: each.clone() for name, each in saved_buffers(model.network).items()}
    reached: list[bool] = []

    def seen(weight: Tensor) -> None:
        reached.append(True)
        weight.grad = None  # frees it at once: all gradients together are as large as the model

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
        raise LocalError(
            f"the config's model, of type {kind}, cannot be trained: its loss is {loss.item():g}",
            code="model-unsupported",
        )
    for name, each in saved_buffers(model.network).items():
        if not torch.equal(each, before[name]):
            raise LocalError(
                f"the config's model, of type {kind}, changes {name} as it trains, which is no weight: members of a "
                "run could not agree on it",
                code="model-unsupported",
            )


def check_can_be_opened(folder: Path) -> None:
    """LocalError unless transformers takes what it has saved in `folder` for a causal model; not all types pass."""
    try:
        config_of(with_floats(json.loads((folder / "config.json").read_bytes())))
    except LocalError as error:
        raise LocalError(
            f"what transformers saves of the run's model it cannot open again: {error}", code="model-unsupported"
        ) from error


def _probe(model: HfModel, length: int, rows: int) -> Tensor:
    """Rows of the same few tokens again and again, on the model's device."""
    device = next(model.parameters()).device
    return (PROBE + torch.arange(length, device=device) % PROBE)[None].repeat(rows, 1)


def config_of(table: Mapping[str, Any]) -> Any:
    """transformers' config object for the content of a config.json; LocalError if it is not that of a causal model.

    Keys that name code are ignored.
    """
    library, kind = extra.transformers(), table.get("model_type")
    if not isinstance(kind, str):
        raise LocalError("the config names no model_type", code="manifest-wrong")
    if (kind in FETCHES_CODE or table.get("quantization_config")) and find_spec("kernels"):
        which = f"models of type {kind}" if kind in FETCHES_CODE else "quantized models"
        raise LocalError(
            f"{which} may fetch code from the hub where the package kernels is installed: uninstall that",
            code="model-unsupported",
        )
    with quietly(), in_words("does not understand the config"):
        settings = _without_code({key: each for key, each in table.items() if key != "model_type"})
        found = library.AutoConfig.for_model(kind, **settings)
    if type(found) not in library.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise LocalError(
            f"transformers {library.__version__} has no causal language model of type {kind}, but models without a "
            "language head at best: what is trained and served here predicts each token from those before it, as llama "
            "or gpt2 do",
            code="model-unsupported",
        )
    return found


def _without_code(value: Any) -> Any:
    """A config's value without keys that name code, at any depth: parts of a model have configs of their own."""
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
    """The network's layers, which are compiled one by one: its longest list of modules."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return iter(max(lists, key=len, default=()))


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Turns errors of libraries, which a config from a peer may cause, into a LocalError of one sentence, or NoRoom."""
    try:
        yield
    except LocalError:
        raise
    except Exception as error:
        if (lack := no_room(error)) is not None:
            raise lack from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise LocalError(
            f"transformers {extra.transformers().__version__} {what}: {reason}", code="model-unsupported"
        ) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Suppresses warnings of libraries about their own code, about which the node's owner can do nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
