"""Which answers to a search are believed: those of our network's devices about themselves."""

from __future__ import annotations

from ipaddress import IPv4Network
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.gateway.ssdp import KINDS, location, questions, within
from shoal.node.gateway.values import GatewayError

NETWORK = IPv4Network("192.168.1.0/24")
ROUTER, URL = "192.168.1.1", "http://192.168.1.1:5000/rootDesc.xml"


def answer(url: str = URL, kind: str = KINDS[0], status: str = "HTTP/1.1 200 OK") -> bytes:
    return f"{status}\r\nCACHE-CONTROL: max-age=120\r\nst: {kind}\r\nLocation: {url}\r\n\r\n".encode()


def test_a_question_names_what_is_looked_for() -> None:
    for question, kind in zip(questions(), KINDS, strict=True):
        assert question.startswith(b"M-SEARCH * HTTP/1.1\r\n")
        assert question.endswith(f"ST: {kind}\r\n\r\n".encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_says_where_it_describes_itself(kind: str) -> None:
    assert location(answer(kind=kind), ROUTER, NETWORK) == URL


@pytest.mark.parametrize(
    ("said", "source"),
    [
        (answer("http://192.168.1.10/x"), ROUTER),
        (answer(), "10.0.0.1"),  # not of our network
        (answer("http://192.168.1.7/x"), ROUTER),  # another device
        (answer("http://127.0.0.1:4180/api/stop"), ROUTER),  # ourselves
        (answer("http://169.254.169.254/latest/meta-data"), ROUTER),
        (answer("http://example.org/x"), ROUTER),  # a name
        (answer("https://192.168.1.1/x"), ROUTER),
        (answer("file:///etc/passwd"), ROUTER),
        (answer("http://192.168.1.1@example.org/x"), ROUTER),
        (answer("http://user:word@192.168.1.1/x"), ROUTER),
        (answer("http://192.168.1.1:99999/x"), ROUTER),
        (answer("http://[192.168.1.1/x"), ROUTER),
        (answer("http://192.168.1.1/" + "x" * 600), ROUTER),
        (answer(kind="upnp:rootdevice"), ROUTER),
        (answer(status="NOTIFY * HTTP/1.1"), ROUTER),
        (answer() + b"x" * 2048, ROUTER),
    ],
)
def test_all_else_is_not_heard(said: bytes, source: str) -> None:
    assert location(said, source, NETWORK) is None


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda url: answer(url)))
def test_whatever_is_said_leads_to_nobody_else(said: bytes) -> None:
    url = location(said, ROUTER, NETWORK)
    assert url is None or (urlsplit(url).scheme, urlsplit(url).hostname) == ("http", ROUTER)


def test_paths_stay_on_the_device() -> None:
    assert within(URL, "/ctl/IPConn") == "http://192.168.1.1:5000/ctl/IPConn"
    assert within(URL, "ctl?a=b") == "http://192.168.1.1:5000/ctl?a=b"
    assert (
        within(URL, "http://192.168.1.1:49000/ctl") == "http://192.168.1.1:49000/ctl"
    )  # another port is its own affair


@pytest.mark.parametrize("path", ["http://192.168.1.2/", "//evil.example/x", "https://192.168.1.1/", "http://[x"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(GatewayError):
        within(URL, path)
