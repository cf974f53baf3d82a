"""What a bug report must not have is taken out of it, however it is written; what a developer needs stays."""

from __future__ import annotations

import json
import random
import secrets
from base64 import b64encode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.link import format_link
from shoal.node.client.bugreport.redact import Private, redact
from shoal.protocol.base.ids import RunId

PEER = "12D3KooWGeuzPH1gZmL62cSGLEKie988WNcgFXaY86awKHcKVQDW"
RELAY = "12D3KooWFBrzv39qexoVVkng8bxEzbTnE1coTGbpNSTjP9Gu5mXP"
KEY = random.Random(7).randbytes(32)


NOTHING = Private()


def cleaned(text: str, private: Private = NOTHING) -> str:
    return redact({"": text}, private).texts[""]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("8.8.8.8", "public-1"),
        ("dial 8.8.8.8:4101 failed.", "dial public-1:4101 failed."),
        ("at 8.8.8.8.", "at public-1."),
        ("192.0.2.7", "public-1"),  # for documents, and used in the network laboratory as public ones
        ("2600:1f18::5", "public-1"),
        ("[2600:1f18::5]:4101", "[public-1]:4101"),
        ("2600:1f18:0:1:2:3:4:5:4101", "public-1:4101"),
        ("host:2600:1f18::5: timed out", "host:public-1: timed out"),
        ("2600:1f18::5.", "public-1."),
        ("2600:1f18::5%eth0", "public-1"),
        ("2600:1F18:0000::0005", "public-1"),
        ("::ffff:8.8.8.8", "public-1"),
        ("::ffff:808:808", "public-1"),
        ("::8.8.8.8", "public-1"),
        ("64:ff9b::8.8.8.8", "public-1"),
        ("2002:808:808::1", "public-1"),
        ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", "public-1"),  # Teredo of 8.8.8.8
        ("/ip4/8.8.8.8/tcp/4101", "/ip4/public-1/tcp/4101"),
        ("/ip6/2600:1f18::5/tcp/4101", "/ip6/public-1/tcp/4101"),
        ('"address": "8.8.8.8"', '"address": "public-1"'),
        ("8.8.8.8.53 > x", "public-1.53 > x"),
    ],
)
def test_public_addresses_are_taken_out(text: str, result: str) -> None:
    assert cleaned(text) == result


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:4180", "10.1.2.3", "192.168.1.7", "172.16.0.1", "169.254.1.2", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.251", "::1", "::", "[::1]:4180", "fe80::1%eth0", "fd12:3456::1", "ff02::fb", "::ffff:10.0.0.1"),
        *("/ip4/192.168.1.7/tcp/4101", "/ip6/::1/tcp/4101", "http://127.0.0.1:4180/v1/status", "http://localhost:1/"),
        *("2026-11-26T05:43:16.123Z", "05:43:16", "torch 2.5.1", "3.11.9", "x[1:2]", "std::vector", "12:34"),
        *("runs/ab12cd34/worker.log", "shoal.node.client.cli.app", "daemon.json", "libp2p.network", "_p2p._udp.local"),
        *(f"/ip4/10.0.0.1/tcp/4101/p2p/{RELAY}/p2p-circuit/p2p/{PEER}", PEER, f"peer {PEER}: gone"),
        "tests/unit/test_a_very_long_name_of_a_file_that_nobody_would_take_for_a_key.py",
        "test_one_that_was_stopped_before_it_listens_is_said_so",
        '"tokens": 2560, "token": null, "code": "admin-port-taken"',
        "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py",
    ],
)
def test_what_says_nothing_of_anybody_stays(text: str) -> None:
    assert cleaned(text) == text


def test_an_address_has_the_same_word_wherever_it_is_and_however_it_is_written() -> None:
    texts = {"a": "8.8.8.8 1.1.1.1", "b": "/ip6/::ffff:1.1.1.1 2600::5", "c": "2600:0:0::0005 8.8.8.8"}
    found = redact(texts, Private())
    assert found.texts == {"a": "public-1 public-2", "b": "/ip6/public-2 public-3", "c": "public-3 public-1"}
    assert found.removed == {"public": 3}


@given(st.ip_addresses(network="2000::/3").map(str))
def test_no_public_address_of_ipv6_stays(address: str) -> None:
    plain = cleaned(f"from {address}: x")
    assert plain in ("from public-1: x", f"from {address}: x")  # some ranges within are private
    if address.startswith("26"):
        assert plain == "from public-1: x"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/dns4/seed.example.org/tcp/4101", "/dns4/host-1/tcp/4101"),
        ("/dns/seed/tcp/1 /dns6/seed/tcp/1 /dnsaddr/other", "/dns/host-1/tcp/1 /dns6/host-1/tcp/1 /dnsaddr/host-2"),
        ("https://alice:pw@hub.example.net:8443/x?y", "https://host-1:8443/x?y"),
        ("http://8.8.8.8:80/ http://[2600::5]:80/", "http://public-2:80/ http://[public-1]:80/"),
        ("cannot find ec2-3-80-1-2.compute-1.amazonaws.com", "cannot find host-1"),
        ("Seed.Example.ORG and seed.example.org", "host-1 and host-1"),
        ("write to alice@example.org", "write to mail-1"),
        ("/dns4/odd.name.zzz/tcp/1: odd.name.zzz is not there", "/dns4/host-1/tcp/1: host-1 is not there"),
    ],
)
def test_names_of_hosts_are_taken_out(text: str, result: str) -> None:
    assert cleaned(text) == result


def test_a_name_of_a_setting_that_is_not_shown_is_known() -> None:
    private = Private(host="alice-laptop.lan", hints=("/dns4/seed.zzz/tcp/1",))
    assert cleaned("seed.zzz, alice-laptop and ALICE-LAPTOP.lan", private) == "host-2, host-3 and host-1"


@pytest.mark.parametrize(
    "address", ["/ip4/8.8.8.8/tcp/4101", "/ip6/2600::5/tcp/4101", "/ip6/2600:1f18::/tcp/1", "/dns4/seed.zzz/tcp/4101"]
)
def test_a_link_is_taken_out_whole(address: str) -> None:
    for number in range(50):
        link = format_link(RunId(bytes([number]) * 32), [f"{address}/p2p/{PEER}"])
        for shown in (link, link.upper()):
            assert shown not in cleaned(f"shoal run join {shown}.")
            assert "seed" not in cleaned(f'"{shown}"')


@pytest.mark.parametrize(
    "spelt",
    [
        *(KEY.hex(), KEY.hex().upper(), f"0x{KEY.hex()}", KEY.hex(":"), KEY.hex(" "), (KEY + KEY).hex()),
        *(b64encode(KEY).decode(), urlsafe_b64encode(KEY).decode(), b64encode(KEY).decode().rstrip("=")),
        *(b64encode(KEY * 3).decode(), f"/p2p/{PEER}/{urlsafe_b64encode(KEY).decode()}"),
        f"-----BEGIN PRIVATE KEY-----\n{b64encode(KEY).decode()}\n-----END PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{b64encode(KEY[:20]).decode()}\ncut off",
        *("hf_AbCdEfGhIjKlMnOpQrSt", "ghp_AbCdEfGhIjKlMnOpQrStUv", "sk-AbCd1234EfGh5678IjKl"),
        *("Authorization: Bearer abc123def456", "#login=Ab12Cd34Ef56Gh78Ij90Kl", '"password": "correcthorse1"'),
    ],
)
def test_keys_and_tokens_are_taken_out(spelt: str) -> None:
    found = cleaned(f"before {spelt} after")
    for part in (KEY.hex()[:12], KEY.hex(":")[:12], KEY.hex(" ")[:12], b64encode(KEY).decode()[:12]):
        assert part.lower() not in found.lower()
    for part in ("AbCd", "abc123", "Ab12", "correcthorse", "cut off"):
        assert part not in found
    assert found.startswith("before ")


@given(st.binary(min_size=32, max_size=64), st.sampled_from([b64encode, urlsafe_b64encode]))
def test_hardly_any_key_escapes(key: bytes, encode: object) -> None:
    """Keys that are drawn, not chosen by a search for what does not look like one."""
    drawn = random.Random(key).randbytes(len(key))
    text = encode(drawn).decode()  # type: ignore[operator]
    assert text[:20] not in cleaned(f"key {text}\n")


def test_tokens_of_the_api_do_not_escape() -> None:
    rng = random.Random(3)
    tokens = [urlsafe_b64encode(rng.randbytes(32)).decode().rstrip("=") for _ in range(2000)]
    kept = cleaned("\n".join(tokens))
    assert not [token for token in tokens if token in kept]


def test_equal_keys_have_equal_words_in_all_reports() -> None:
    one = redact({"": f"{KEY.hex()} {KEY.hex().upper()}"}, Private())
    other = redact({"": f"{bytes(32).hex()} {KEY.hex()}"}, Private())
    assert one.texts[""].split()[0] == one.texts[""].split()[1] == other.texts[""].split()[1]
    assert one.removed == {"key": 1}


@pytest.mark.parametrize("secret", [b"short and readable secret\n", bytes(range(64)), b"\x80key" * 10])
def test_what_a_secret_file_holds_is_taken_out_however_it_is_spelt(secret: bytes) -> None:
    plain = secret.decode(errors="ignore").strip()
    spelt = [secret.hex(), b64encode(secret).decode(), repr(secret)[2:-1], json.dumps({"it": plain})]
    found = cleaned(" ".join(spelt), Private(secrets=(secret,)))
    for each in (secret.hex(), b64encode(secret).decode().rstrip("="), repr(secret)[2:-1]):
        assert each not in found


def test_what_a_damaged_secret_file_holds_is_not_sought_everywhere() -> None:
    assert cleaned("a banana", Private(secrets=(b"a", b"", b"\n"))) == "a banana"


def test_folders_and_users_are_taken_out() -> None:
    private = Private(folders=(("/home/alice/.shoal", "$SHOAL_HOME"), ("/home/alice", "~")), user="alice")
    text = (
        "/home/alice/.shoal/logs /home/alice/x /home/bob/y /Users/Carol/z file:///home/alice alice's alicea /v1/home/x"
    )
    expected = "$SHOAL_HOME/logs ~/x ~/y ~/z file://~ user's alicea /v1~"
    assert cleaned(text, private) == expected


def test_a_folder_is_known_in_json_and_not_as_a_part_of_a_name() -> None:
    private = Private(folders=(("/data/jürgen", "~"), ("/root", "~")), user="root")
    text = json.dumps({"path": "/data/jürgen/x"}) + " /root/x /v1/root /rooted root"
    assert cleaned(text, private) == '{"path": "~/x"} ~/x /v1/root /rooted root'


def test_nothing_is_said_to_be_taken_out_where_nothing_was() -> None:
    assert redact({"a": "all is well", "b": ""}, Private(user="alice", host="host")).removed == {}


@given(st.text(alphabet="abcdef0123456789:.%/\\@-_ =\n", max_size=400))
def test_any_text_is_taken(text: str) -> None:
    cleaned(text, Private(secrets=(secrets.token_bytes(32),), user="alice"))
