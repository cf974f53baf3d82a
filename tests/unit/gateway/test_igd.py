"""What a router says in XML, and what we say to it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.gateway import igd
from shoal.node.gateway.igd import Control, Fault, answer, call, controls, entry, leads_to, mapping, outside
from shoal.node.gateway.markup import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS, read
from shoal.node.gateway.values import GatewayError

URL = "http://192.168.1.1:5000/rootDesc.xml"
IP, PPP = igd.KINDS[1], igd.KINDS[2]


def service(kind: str, path: str) -> str:
    return f"<service><serviceType>{kind}</serviceType><controlURL> {path} </controlURL></service>"


def description(*services: str) -> bytes:
    inner = f"<device><serviceList>{''.join(services)}</serviceList></device>"
    outer = f"<device><friendlyName>a &amp; b</friendlyName><deviceList>{inner}</deviceList></device>"
    return f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{outer}</root>'.encode()


def soap(inner: str) -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>' + inner + "</s:Body></s:Envelope>"
    ).encode()


def fault(code: object) -> bytes:
    return soap(f"<s:Fault><detail><UPnPError><errorCode>{code}</errorCode></UPnPError></detail></s:Fault>")


def test_services_that_map_ports_are_found_the_best_first() -> None:
    found = controls(description(service("urn:x", "/x"), service(PPP, "/ppp"), service(IP, "/ip")), URL)
    assert found == [Control("http://192.168.1.1:5000/ip", IP), Control("http://192.168.1.1:5000/ppp", PPP)]


def test_a_device_of_many_services_is_heard_for_a_few() -> None:
    assert len(controls(description(*[service(IP, f"/{number}") for number in range(50)]), URL)) == igd.MAX_CONTROLS


def test_a_service_elsewhere_is_refused() -> None:
    with pytest.raises(GatewayError):
        controls(description(service(IP, "http://192.168.1.9/ctl")), URL)


def test_a_call_holds_its_arguments_in_order_and_nothing_that_ends_them() -> None:
    headers, body = call(Control(URL, IP), "AddPortMapping", **mapping(4101, 4103, "192.168.1.2<", 60))
    assert headers["SOAPAction"] == f'"{IP}#AddPortMapping"'
    sent = next(read(body).every("AddPortMapping"))
    assert [each.name for each in sent.children][:5] == [
        *("NewRemoteHost", "NewExternalPort", "NewProtocol", "NewInternalPort", "NewInternalClient")
    ]
    assert (sent.first("NewExternalPort"), sent.first("NewInternalPort")) == ("4103", "4101")
    assert sent.first("NewInternalClient") == "192.168.1.2<"
    assert [each.name for each in next(read(call(Control(URL, IP), "X", **entry(1))[1]).every("X")).children] == [
        *("NewRemoteHost", "NewExternalPort", "NewProtocol")
    ]


def test_answers_are_their_values() -> None:
    said = soap('<u:GetXResponse xmlns:u="urn:y"><NewA> 1 </NewA><NewB/></u:GetXResponse>')
    assert answer(said, "GetX") == {"NewA": "1", "NewB": ""}
    with pytest.raises(GatewayError, match="something else"):
        answer(said, "GetY")


@pytest.mark.parametrize(("code", "read_as", "is_taken"), [(718, 718, True), (606, 606, False), ("nonsense", 0, False)])
def test_a_refusal_says_what_may_help(code: object, read_as: int, is_taken: bool) -> None:
    with pytest.raises(Fault) as refusal:
        answer(fault(code), "AddPortMapping")
    assert (refusal.value.number, refusal.value.is_taken) == (read_as, is_taken)


def test_whose_mapping_it_is() -> None:
    held = {"NewInternalClient": "192.168.1.2", "NewInternalPort": "4101"}
    assert leads_to(held, 4101, "192.168.1.2")
    assert not leads_to(held, 4101, "192.168.1.3")
    assert not leads_to(held, 4102, "192.168.1.2")
    assert not leads_to({}, 4101, "192.168.1.2")


@pytest.mark.parametrize(("said", "host"), [("7.7.7.8", "7.7.7.8"), ("0.0.0.0", ""), ("", ""), ("::1", ""), ("x", "")])
def test_the_outside_is_an_address_or_none(said: str, host: str) -> None:
    assert outside({"NewExternalIPAddress": said}) == host
    assert outside({}) == ""


# -- XML of strangers ---------------------------------------------------------------------------------------

LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'


@pytest.mark.parametrize(
    "document",
    [
        LAUGHS.encode(),
        LAUGHS.encode("utf-16"),
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "http://127.0.0.1/">]><a>&b;</a>',
        b"<a>&b;</a>",
        b"",
        b"<a>",
        b"<a/><a/>",
        b'<?xml version="1.0" encoding="none-such"?><a/>',
        b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1),
        b"<a>" + b"<b/>" * MAX_ELEMENTS + b"</a>",
        b"<a>" + b" " * MAX_BYTES + b"</a>",
    ],
)
def test_xml_that_breaks_a_rule_is_refused(document: bytes) -> None:
    with pytest.raises(GatewayError):
        read(document)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: soap(text)))
def test_any_answer_is_values_or_an_error_that_is_expected(document: bytes) -> None:
    with suppress(GatewayError):
        assert isinstance(answer(document, "GetX"), dict)
