"""A manifest is understood the same by everybody, or refused with a sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.node.manifest.manifest import (
    MAX_MANIFEST,
    DataSpec,
    Manifest,
    NewerProtocol,
    check_manifest,
    decode_manifest,
    load_manifest,
    parse_manifest,
)
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.register import MAX_SEATS
from shoal.protocol.messages.genesis import Genesis, sign_genesis
from tests.run_kit import NONCE
from tests.simulation.signing import FakeSigner

BUILT_IN = Path(__file__).parents[2] / "examples" / "stdlib.toml"
GOLDEN = "5e70da617d79055876d604e3c3aca824dd1f74c6c9a6bec4bfd22fc0f5f60932"
MANIFEST = Manifest(name="test", seed=7)
ALICE, BOB = FakeSigner(PeerId("alice")), FakeSigner(PeerId("bob"))


def test_a_method_whose_name_is_a_table_is_the_senders_mistake() -> None:
    table = msgpack.unpackb(MANIFEST.canonical())
    data = msgpack.packb(table | {"method": {"name": {"a": 1}}, "codec": {}})
    with pytest.raises(RemoteError):
        decode_manifest(data, BOB.peer)


def test_the_run_id_of_a_fixed_manifest_never_changes() -> None:
    # A key that `canonical` writes at its default changes it: then older versions cannot take part, and PROTOCOL grows.
    assert Manifest(name="golden").digest.hex() == GOLDEN


@pytest.mark.parametrize(("asked", "given"), [(None, 1 << 20), (65_536, 65_536), (8 << 20, 1 << 20)])
def test_chunks_of_a_state_are_never_too_large_for_a_slow_line(asked: int | None, given: int) -> None:
    rounds = f"[rounds]\nchunk_bytes = {asked}" if asked else ""
    assert parse_manifest(f'name = "golden"\n{rounds}').rounds.state_chunk_bytes == given


def test_a_pace_of_its_own_is_another_run_and_survives_the_wire() -> None:
    manifest = parse_manifest('name = "golden"\n[rounds]\npace = "steps"')
    assert manifest.digest.hex() != GOLDEN
    assert decode_manifest(manifest.canonical()) == manifest
    assert parse_manifest('name = "golden"\n[rounds]\npace = "deadline"').digest.hex() == GOLDEN


def test_an_optimizer_of_its_own_is_another_run_and_survives_the_wire() -> None:
    manifest = parse_manifest('name = "golden"\n[method]\noptimizer = "muon"')
    assert manifest.digest.hex() != GOLDEN
    assert decode_manifest(manifest.canonical()) == manifest
    assert parse_manifest('name = "golden"\n[method]\noptimizer = "adamw"').digest.hex() == GOLDEN


def test_order_and_spelled_out_defaults_do_not_matter() -> None:
    terse = parse_manifest('name = "a"\n[rounds]\nmin_members = 3\n[model]\ndim = 64')
    wordy = parse_manifest('seed = 0\nname = "a"\n[model]\ndim = 64\nlayers = 4\n[rounds]\nmin_members = 3')
    assert terse.canonical() == wordy.canonical()


def test_the_built_in_manifest_survives_the_wire() -> None:
    manifest = load_manifest(BUILT_IN)
    assert decode_manifest(manifest.canonical()) == manifest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nmae = 'a'", "unknown key 'nmae'; the nearest known key is 'name'"),
        ("name = 'a'\n[modle]\ndim = 8", "unknown key 'modle'; the nearest known key is 'model'"),
        ("name = 'a'\n[model]\ndimm = 8", "unknown key 'model.dimm'; the nearest known key is 'model.dim'"),
        ("name = 'a'\ninner_steps = 8", "unknown key 'inner_steps'; the nearest known key is 'method.inner_steps'"),
        ("name = 'a'\n[codec]\nzzz = 8", "unknown key 'codec.zzz'; the nearest known key is"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(text: str, expected: str) -> None:
    with pytest.raises(LocalError, match="unknown key") as caught:
        parse_manifest(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name = 1", "'name'"),
        ("name = ''", "'name'"),
        ("name = '../../etc'", "'name'"),
        (f"name = '{'a' * 65}'", "'name'"),
        ("seed = 1", "'name'"),
        ("name = 'a'\nseed = -1", "'seed'"),
        ("name = 'a'\nseed = 9223372036854775808", "'seed'"),
        ("name = 'a'\nseed = 1.0", "'seed'"),
        ("name = 'a'\nseed = true", "'seed'"),
        ("name = 'a'\nseed = 2024-01-01", "'seed'"),
        ("name = 'a'\nprotocol = 3", "upgrade Shoal on this machine"),
        ("name = 'a'\nmodel = 'llama'", "'model'"),
        ("name = 'a'\nmodel = [1]", "'model'"),
        ("name = 'a'\n[model]\nname = 'os.system'", "'model.name'"),
        ("name = 'a'\n[model]\nheads = 3", "multiple"),
        ("name = 'a'\n[model]\ndim = 1000000000", "'model.dim'"),
        ("name = 'a'\n[data]\ndigest = 'x'", "'data.digest'"),
        ("name = 'a'\n[method]\nclip = nan", "'method.clip'"),
        ("name = 'a'\n[method]\noptimizer = 'sgd'", "'method.optimizer'"),
        ("name = 'a'\n[method]\nclip = inf", "'method.clip'"),
        ("name = 'a'\n[method]\nbetas = [0.9, nan]", "'method.betas.1'"),
        ("name = 'a'\n[method]\nbetas = [0.9, 1.5]", "'method.betas.1'"),
        ("name = 'a'\n[method]\nbetas = [0.9]", "'method.betas.1'"),
        ("name = 'a'\n[method]\nwarmup_steps = 1" + "0" * 30, "'method.warmup_steps'"),
        ("name = 'a'\n[rounds]\nlast = 0", "'rounds.last'"),
        ("name = 'a'\n[rounds]\nlast = 1" + "0" * 30, "'rounds.last'"),
        ("name = 'a'\n[rounds]\nchunk_bytes = 1", "'rounds.chunk_bytes'"),
        ("name = 'a'\n[codec]\nscatter = 'int7'", "'codec.scatter'"),
        ("name = ", "not TOML"),
        ("name = 'a'\nname = 'b'", "not TOML"),
        ("model = " + "[" * 3_000 + "]" * 3_000, "nested too deeply"),
        ("model = " + "{a=" * 20 + "1" + "}" * 20, "nested too deeply"),
        ("seed = 1" + "0" * 5_000, "too long"),
        ("#" * (MAX_MANIFEST + 1), "larger than 64 KiB"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text: str, where: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_manifest(text, "my.toml")
    assert where in str(caught.value)
    assert str(caught.value).startswith("my.toml")
    assert "\n" not in str(caught.value)


def test_a_whole_number_is_a_fine_float() -> None:
    assert parse_manifest("name='a'\n[method]\nclip = 1") == parse_manifest("name='a'\n[method]\nclip = 1.0")


def test_every_bound_fits_the_wire() -> None:
    text = (
        "name='a'\nseed=9223372036854775807\n[rounds]\nlast=9007199254740992\n[method]\nwarmup_steps=9007199254740992"
    )
    manifest = parse_manifest(text)
    assert decode_manifest(manifest.canonical()) == manifest


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * (MAX_MANIFEST + 1)])
def test_a_file_that_cannot_be_read_is_a_local_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LocalError, match=r"run\.toml"):
        load_manifest(path)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        MANIFEST.canonical()[:-1],
        MANIFEST.canonical() + b"\x00",
        nested(20),
        nested(900),
        nested(60_000),
        b"\x81\xa4name" + nested(400),
        msgpack.packb({"name": "test"}),  # canonical form leaves no default out
        msgpack.packb(dict(reversed(MANIFEST.model_dump(mode="json").items()))),
        msgpack.packb({**MANIFEST.model_dump(mode="json"), "extra": 1}),
        msgpack.packb({**MANIFEST.model_dump(mode="json"), "protocol": 0}),
        msgpack.packb({"\x1b[2J" * 9_000: 2}),
        msgpack.packb({1: 2}),
        msgpack.packb(msgpack.Timestamp(1)),
        bytes(MAX_MANIFEST + 1),
    ],
)
def test_bytes_that_are_no_canonical_manifest_name_their_sender(data: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_manifest(data, PeerId("mallory"))
    assert caught.value.peer == "mallory"
    assert len(str(caught.value)) < 300


def test_a_manifest_of_a_newer_protocol_is_nobodys_fault() -> None:
    data = msgpack.packb({"protocol": 3, "name": ["of another shape"], "new": 1})
    with pytest.raises(NewerProtocol, match=r"the run speaks protocol 3, and this version of Shoal 2: upgrade"):
        decode_manifest(data, PeerId("mallory"))


@given(st.binary(max_size=300) | st.recursive(st.none() | st.booleans() | st.floats(), st.lists).map(msgpack.packb))
def test_any_bytes_give_a_manifest_or_a_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteError):
        decode_manifest(data)


@given(st.data())
def test_a_mutated_manifest_is_refused_or_another_valid_one(data: st.DataObject) -> None:
    mutated = bytearray(MANIFEST.canonical())
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        manifest = decode_manifest(bytes(mutated))
    except RemoteError:
        return
    assert manifest.canonical() == bytes(mutated)


def signed(nonce: bytes = NONCE, data: bytes = MANIFEST.canonical(), author: FakeSigner = ALICE) -> Genesis:
    return sign_genesis(data, nonce, author)


def test_a_signed_manifest_is_accepted_from_anybody() -> None:
    assert check_manifest(signed(), BOB) == MANIFEST


def test_a_run_is_its_manifest_its_author_and_its_nonce() -> None:
    others = [signed(nonce=bytes(15) + b"1"), signed(data=Manifest(name="other").canonical()), signed(author=BOB)]
    assert len({each.run for each in (signed(), *others)}) == 4
    assert signed().run == replace(signed(), signature=b"another").run


@pytest.mark.parametrize(
    "forgery",
    [
        replace(signed(), author=BOB.peer),
        replace(signed(), signature=b""),
        replace(signed(), signature=ALICE.sign(MANIFEST.canonical())),  # signed as something else
        replace(signed(), signature=signed(author=BOB).signature),
    ],
)
def test_a_forged_signature_names_who_shows_it(forgery: Genesis) -> None:
    with pytest.raises(RemoteError, match="has not signed") as caught:
        check_manifest(forgery, BOB, PeerId("mallory"))
    assert caught.value.peer == "mallory"


@pytest.mark.parametrize("size", [0, 15, 17, 1 << 20])
def test_a_nonce_has_one_size(size: int) -> None:
    with pytest.raises(RemoteError, match=f"a nonce of {size} bytes"):
        check_manifest(signed(nonce=bytes(size)), BOB)


PIECES = {"name": "files", "digest": "ab" * 32, "pieces": "cd" * 32, "size": 12}


def test_only_a_run_whose_data_have_pieces_has_another_id_for_it() -> None:
    named = Manifest(name="golden", data=DataSpec.model_validate(PIECES))
    unnamed = Manifest(name="golden", data=DataSpec(name="files", digest="ab" * 32))
    assert named.digest != unnamed.digest
    assert decode_manifest(named.canonical()) == named
    assert b"pieces" not in unnamed.canonical()
    assert named.completes(unnamed)
    assert named.completes(named)
    assert not unnamed.completes(named)
    assert not named.completes(unnamed.model_copy(update={"seed": 1}))
    assert not named.completes(Manifest(name="golden", data=DataSpec(name="files", digest="cd" * 32)))
    assert not named.completes(Manifest(name="golden"))


@pytest.mark.parametrize("lacks", ["name", "digest", "pieces", "size"])
def test_pieces_come_with_all_that_belongs_to_them(lacks: str) -> None:
    with pytest.raises(ValidationError):
        DataSpec.model_validate({key: value for key, value in PIECES.items() if key != lacks})


@pytest.mark.parametrize("way", ["scatter", "gather"])
@pytest.mark.parametrize("codec", ["uint8", "sign", "fedzip"])
def test_a_codec_for_research_is_refused_by_its_name(way: str, codec: str) -> None:
    words = (
        rf"{codec} is a codec for research .*uint8, sign, fedzip.* a run has one of fp32, fp16, bf16, int8, fp4, topk"
    )
    with pytest.raises(LocalError, match=words):
        parse_manifest(f"name = 'a'\n[codec]\n{way} = '{codec}'")


@pytest.mark.parametrize("key", ["min_members", "start_members"])
def test_a_run_waits_for_no_more_members_than_a_round_may_have(key: str) -> None:
    parse_manifest(f'name = "a"\n[rounds]\n{key} = {MAX_SEATS}')
    with pytest.raises(LocalError, match=f"{key}.*{MAX_SEATS}"):
        parse_manifest(f'name = "a"\n[rounds]\n{key} = {MAX_SEATS + 1}')
