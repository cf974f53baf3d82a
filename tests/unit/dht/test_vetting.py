"""Checks of what other peers say about servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.keys import K
from shoal.dht.vetting import MAX_ADDRESS, MAX_ADDRESSES, vetted_contacts
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact
from shoal.protocol.net.system.identity import Identity
from tests.unit.dht.core_kit import ME, contact, contacts

SPEAKER = contact()


def test_good_contacts_pass_and_we_are_left_out() -> None:
    others = contacts(3)
    assert vetted_contacts(ME, SPEAKER.peer, [*others, contact(ME), others[0]]) == others


def test_a_real_peer_id_passes() -> None:
    real = contact(Identity.of_seed(b"x" * 32).peer)
    assert vetted_contacts(ME, SPEAKER.peer, [real]) == [real]


BAD = [
    [SPEAKER],
    contacts(K + 1),
    [contact(PeerId("Qm" + "x" * 44))],
    [Contact(PeerId(""), SPEAKER.addresses)],
    [contact(PeerId("12D3KooW" + "0" * 44))],
    [contact(None, *["/ip4/8.8.8.8/tcp/1"] * (MAX_ADDRESSES + 1))],
    [contact(None, "/" + "x" * MAX_ADDRESS)],
    [contact(None, "ip4/8.8.8.8/tcp/1")],
]


@pytest.mark.parametrize("named", BAD)
def test_what_no_honest_node_says_is_refused_and_the_speaker_named(named: list[Contact]) -> None:
    with pytest.raises(RemoteError) as caught:
        vetted_contacts(ME, SPEAKER.peer, [*contacts(1)[: K - len(named)], *named])
    assert caught.value.peer == SPEAKER.peer


def test_a_contact_without_an_address_cannot_be_asked() -> None:
    assert vetted_contacts(ME, SPEAKER.peer, [Contact(contact().peer, ())]) == []


@given(
    st.lists(
        st.builds(Contact, st.text(max_size=60), st.lists(st.text(max_size=300), max_size=10).map(tuple)), max_size=25
    )
)
def test_anything_gives_contacts_or_blames_the_speaker(named: list[Contact]) -> None:
    blamed: list[PeerId | None] = []
    found: list[Contact] = []
    try:
        found = vetted_contacts(ME, SPEAKER.peer, named)
    except RemoteError as error:
        blamed.append(error.peer)
    assert blamed in ([], [SPEAKER.peer])
    assert len(found) <= K
