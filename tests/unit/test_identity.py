"""Keys, names and signatures, checked against libp2p's own derivation where there is one."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.identity_utils import save_identity
from libp2p.peer.id import ID

from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.base.signing import check_signature, signed
from shoal.protocol.messages.log import Order, What
from shoal.protocol.net.system.identity import Identity, public_key

RUN, OTHER_RUN = RunId(b"r" * 32), RunId(b"o" * 32)
GOLDEN_SEED = b"a" * 32
GOLDEN_PEER = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"


def identity(seed: bytes = GOLDEN_SEED) -> Identity:
    return Identity.of_seed(seed)


# -- names --------------------------------------------------------------------------------------------------


def test_a_known_seed_has_its_known_name() -> None:
    assert identity().peer == GOLDEN_PEER


@given(st.binary(min_size=32, max_size=32))
def test_the_name_is_libp2ps(seed: bytes) -> None:
    theirs = create_new_key_pair(seed)
    assert identity(seed).peer == str(ID.from_pubkey(theirs.public_key))
    assert public_key(identity(seed).peer).public_bytes_raw() == theirs.public_key.to_bytes()


@given(st.text(max_size=80) | st.text(alphabet=GOLDEN_PEER, min_size=50, max_size=54))
def test_what_is_not_a_name_is_refused(text: str) -> None:
    try:
        key = public_key(PeerId(text))
    except ValueError:
        return
    assert str(ID.from_pubkey(create_new_key_pair().public_key))[:8] == text[:8]
    assert len(key.public_bytes_raw()) == 32


# -- the key file -------------------------------------------------------------------------------------------


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.key"
    made = Identity.load_or_create(path)
    assert Identity.load_or_create(path).peer == made.peer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["identity.key"]


def test_the_file_holds_libp2ps_form(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = Identity.load_or_create(path)
    assert path.read_bytes() == bytes([8, 1, 0x12, 64]) + made.seed + public_key(made.peer).public_bytes_raw()


def test_a_key_that_py_libp2p_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    theirs = create_new_key_pair()
    save_identity(theirs, path)
    assert Identity.load_or_create(path).peer == str(ID.from_pubkey(theirs.public_key))


def test_all_who_start_at_once_get_the_same_identity(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    with ThreadPoolExecutor(8) as pool:
        peers = {each.peer for each in pool.map(lambda _: Identity.load_or_create(path), range(16))}
    assert len(peers) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        bytes([8, 1, 0x12, 32]) + b"short",
        bytes([8, 2, 0x12, 32]) + b"a" * 32,  # another kind of key
        bytes([8, 1, 0x12, 64]) + b"a" * 64,  # the public half is not this seed's
        bytes([8, 1, 0x12, 32]) + b"a" * 33,
    ],
)
def test_garbage_is_not_a_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LocalError, match="not an Ed25519 key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(LocalError, match="chmod 600"):
        Identity.load_or_create(path)


def test_a_path_that_cannot_hold_a_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="cannot use the key file"):
        Identity.load_or_create(tmp_path / "file" / "identity.key")


# -- signatures ---------------------------------------------------------------------------------------------


def test_a_signature_holds_in_its_own_run_only() -> None:
    author, reader = identity(), identity(b"b" * 32)
    signature = author.signer(RUN).sign(b"words")
    assert reader.signer(RUN).verify(author.peer, b"words", signature)
    assert not reader.signer(RUN).verify(author.peer, b"other words", signature)
    assert not reader.signer(RUN).verify(reader.peer, b"words", signature)
    assert not reader.signer(OTHER_RUN).verify(author.peer, b"words", signature)
    assert not reader.signer(None).verify(author.peer, b"words", signature)


@given(st.text(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_verify_says_no_to_garbage(author: str, data: bytes, signature: bytes) -> None:
    signer = identity().signer(RUN)
    assert not signer.verify(PeerId(author), data, signature)
    assert not signer.verify(identity().peer, data, signature)


def test_a_message_is_signed_and_checked() -> None:
    author, reader = identity(), identity(b"b" * 32).signer(None)
    unsigned = Order(NO_DIGEST, What.END, PeerId(""), 0, author.peer, 1, b"")
    message = signed(unsigned, author.signer(None))
    check_signature(message, author.peer, reader)
    with pytest.raises(RemoteError, match="forged"):
        check_signature(unsigned, author.peer, reader)
