"""A method's name alone is enough, settings of other methods are refused, and runs of DiLoCo keep their ids."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgpack
import pytest
from pydantic import ValidationError

from shoal.node.manifest.manifest import Manifest, decode_manifest, load_manifest, parse_manifest
from shoal.node.manifest.method import SPECIAL_SETTINGS, MethodName, MethodSpec
from shoal.node.training.methods.method import has_own_weights
from shoal.node.training.methods.registry import METHODS, method_of, timetable_of
from shoal.node.training.models.registry import layout_of
from shoal.protocol.base.errors import LocalError

BUILT_IN = Path(__file__).parents[2] / "examples" / "stdlib.toml"
BEFORE = "7ba14cd0c3fb4897b4d12db3eb9568b2c03514734fd4c4c3379c6fd4a3e72649"  # its run id when only diloco existed
NAMES = [name for name in get_args(MethodName) if name != "experts"]  # whose experts are trained by others
SUITING = {  # inner steps, outer rate and momentum, and the codecs, of a manifest that names a method and no more
    "ddp": (1, 1.0, 0.0, "fp32", "fp32"),
    "diloco": (20, 0.7, 0.9, "fp32", "fp32"),
    "diloco-delayed": (20, 0.5, 0.0, "fp32", "fp32"),
    "diloco-eager": (20, 0.8, 0.0, "fp32", "fp32"),
    "co2": (20, 1.0, 0.2, "fp32", "fp32"),
    "streaming-diloco": (20, 0.7, 0.9, "fp4", "fp32"),
    "sparseloco": (20, 1.0, 0.0, "topk", "fp32"),
    "noloco": (20, 1.0, 0.0, "fp32", "fp32"),
    "gossip": (20, 1.0, 0.0, "fp32", "fp32"),
}


def parsed(method: str, more: str = "") -> Manifest:
    return parse_manifest(f'name = "a"\n[method]\nname = "{method}"\n{more}')


def test_each_name_is_in_the_registry() -> None:
    assert set(NAMES) == set(METHODS) == set(SUITING)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_alone_is_a_run(name: str) -> None:
    manifest = parsed(name)
    spec, codec = manifest.method, manifest.codec
    found = (spec.inner_steps, spec.outer_lr, spec.outer_momentum, codec.scatter, codec.gather)
    assert found == SUITING[name]
    assert decode_manifest(manifest.canonical()) == manifest
    layout = layout_of(manifest.model)
    method = method_of(manifest, layout)
    assert timetable_of(manifest, layout).delay == method.delay
    assert (spec.has_replicas, spec.has_own_weights) == (method.exchange.is_of_replicas, has_own_weights(method))


def test_streaming_has_fragments_that_are_mixed_in_a_step_later() -> None:
    spec = parsed("streaming-diloco").method
    assert (spec.strides, spec.delay, spec.alpha, spec.fragments) == (2, 1, 0.5, 3)
    assert parsed("streaming-diloco", "strides = 1").method.fragments == 1
    assert parsed("diloco").method.fragments == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", SPECIAL_SETTINGS)
def test_a_setting_of_another_method_is_refused_and_named(name: str, key: str) -> None:
    value = {"alpha": 0.25}.get(key, 1)
    if name in SPECIAL_SETTINGS[key]:
        assert getattr(parsed(name, f"{key} = {value}").method, key) == value
        return
    owners = " and ".join(SPECIAL_SETTINGS[key])
    with pytest.raises(LocalError, match=f"`{key}` is a setting of {owners}, and nothing to {name}"):
        parsed(name, f"{key} = {value}")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("ddp", "inner_steps = 5", "`inner_steps` is always 1"),
        ("ddp", "outer_lr = 0.7", "`outer_lr` is always 1"),
        ("ddp", "outer_momentum = 0.9", "`outer_momentum` is always 0"),
        ("sparseloco", "outer_momentum = 0.9", "`outer_momentum` is always 0"),
        ("noloco", "outer_lr = 0.7", "`outer_lr` is always 1"),
        ("gossip", "outer_momentum = 0.9", "`outer_momentum` is always 0"),
    ],
)
def test_a_setting_that_cannot_be_another_is_refused(name: str, setting: str, value: str) -> None:
    with pytest.raises(LocalError, match=f"with {name} {value}: leave it out"):
        parsed(name, setting)
    parsed(name, f"{setting.split(' = ')[0]} = {value.split()[-1]}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("strides = 4\ninner_steps = 4", "5 fragments in 4 inner steps"),
        ("strides = 2\ninner_steps = 9\ndelay = 4", "3 fragments in 9 inner steps are sent 3 steps apart"),
        ("strides = 1\ninner_steps = 9\ndelay = 9", "1 fragments in 9 inner steps are sent 9 steps apart"),
        ("strides = 1\ninner_steps = 1", "1 fragments in 1 inner steps"),
    ],
)
def test_fragments_that_would_be_under_way_twice_are_refused(settings: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parsed("streaming-diloco", settings)


def test_more_fragments_than_layers_are_refused() -> None:
    with pytest.raises(LocalError, match=r"method\.strides is 5, but the model has 4 layers"):
        parsed("streaming-diloco", "strides = 5")


@pytest.mark.parametrize("strides", [1, 2, 3, 4])
@pytest.mark.parametrize("inner_steps", [1, 2, 5, 9])
@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_what_is_allowed_can_be_built_and_what_cannot_be_built_is_refused(
    strides: int, inner_steps: int, delay: int
) -> None:
    settings = {"strides": strides, "inner_steps": inner_steps, "delay": delay}
    try:
        manifest = Manifest(name="a", method=MethodSpec(name="streaming-diloco", **settings))  # type: ignore[arg-type]
    except ValidationError:
        loose = MethodSpec(name="streaming-diloco").model_copy(update=settings)
        manifest = Manifest(name="a").model_copy(update={"method": loose})
        with pytest.raises(ValueError):  # noqa: PT011 - several sentences
            timetable_of(manifest, layout_of(manifest.model))
    else:
        timetable_of(manifest, layout_of(manifest.model))


@pytest.mark.parametrize("key", ["mixing_steps", "neighbours"])
def test_what_only_the_laboratory_can_is_refused_in_words(key: str) -> None:
    with pytest.raises(LocalError, match=f"`{key}` is for the laboratory: .* make `inner_steps` smaller"):
        parsed("gossip", f"{key} = 1")


def test_replicas_exchange_in_half_of_a_round_without_a_pause() -> None:
    spec = parsed("noloco").method
    assert (spec.delay, spec.alpha, spec.beta, spec.gamma) == (10, 0.5, 0.7, 0.7)
    assert parsed("gossip", "inner_steps = 7").method.delay == 3
    assert parsed("gossip", "inner_steps = 1").method.delay == 0
    assert parsed("noloco", "delay = 0").method.delay == 0
    for name in ("noloco", "gossip"):
        with pytest.raises(LocalError, match="delay must be at most 6"):
            parsed(name, "inner_steps = 7\ndelay = 7")


@pytest.mark.parametrize(
    ("settings", "words"),
    [("alpha = 0.9", "less than 0.38"), ("gamma = 1.5", "less than 1.5"), ("alpha = 1.0", "less than 1")],
)
def test_replicas_that_would_drift_apart_are_refused(settings: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parsed("noloco", settings)


def packed(key: str) -> bytes:
    """A key as msgpack writes it."""
    written: bytes = msgpack.packb(key)
    return written


# -- what others read of it ---------------------------------------------------------------------------------


def test_a_run_of_diloco_has_the_id_that_it_had_before_there_were_other_methods() -> None:
    assert load_manifest(BUILT_IN).digest.hex() == BEFORE


def test_settings_that_are_left_out_are_not_in_the_bytes() -> None:
    for key in SPECIAL_SETTINGS:
        assert packed(key) not in parsed("diloco").canonical()
    assert packed("outer_clip") not in parsed("co2").canonical()
    assert packed("outer_clip") in parsed("co2", "outer_clip = 0.5").canonical()


def test_the_codec_of_a_method_gives_way_to_one_that_is_named() -> None:
    assert parse_manifest('name="a"\n[method]\nname="sparseloco"\n[codec]\nscatter="fp32"').codec.scatter == "fp32"
    named = parse_manifest('name="a"\n[method]\nname="streaming-diloco"\n[codec]\ngather="int8"').codec
    assert (named.scatter, named.gather) == ("fp4", "int8")


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ('scatter = "int8"', "codec.scatter of sparseloco must be one of topk, fp32"),
        ('gather = "topk"', "codec.gather of sparseloco must not be topk"),
    ],
)
def test_codecs_that_lose_what_sparseloco_keeps_are_refused(codec: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parse_manifest(f'name="a"\n[method]\nname="sparseloco"\n[codec]\n{codec}')


@pytest.mark.parametrize("codec", ["int8", "topk", "fp4"])
def test_weights_are_not_sent_so_that_nobody_can_train_on_them(codec: str) -> None:
    with pytest.raises(LocalError, match=r"codec\.scatter of gossip, which sends weights, must be one of fp32"):
        parse_manifest(f'name="a"\n[method]\nname="gossip"\n[codec]\nscatter="{codec}"')


@pytest.mark.parametrize("key", ["outer_clip", "typical_change"])
@pytest.mark.parametrize("value", ["1e-60", "3.5e38"])
def test_what_would_be_nothing_or_infinite_in_fp32_is_refused(key: str, value: str) -> None:
    with pytest.raises(LocalError, match=key):
        parsed("co2", f"{key} = {value}")


def test_ddp_has_no_other_optimizer() -> None:
    with pytest.raises(LocalError, match="ddp steps by AdamW"):
        parsed("ddp", 'optimizer = "muon"')
