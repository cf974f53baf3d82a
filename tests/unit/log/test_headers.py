"""Headers: a joiner gets from the founder to now by few of them, and is led nowhere by forged ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import encode_value
from shoal.protocol.log.headers import fewest, follow, follow_all
from shoal.protocol.log.register import Rules, electorate_of, electorate_root, founded
from shoal.protocol.log.trust import Byzantine, Crash
from shoal.protocol.messages.log import Certificate, Electorate, Header, Phase, Proof, Subject, Vote, Voter
from tests.simulation.log_search import rules_of
from tests.simulation.signing import SIZE, FakeSigner

BRANCH: Digest = digest("a run")
DONOR = PeerId("donor")
VOTERS, ROUNDS, TURNOVER = 7, 100_000, 1_000
ED25519 = 64  # bytes of a real signature


def named(number: int) -> Voter:
    return Voter(PeerId(f"12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6v{number:06}"), 1_790_000_000_000 + number)


def electorate(first: int, since: int, faults: int = 0) -> Electorate:
    """Seven voters, numbered from `first` on."""
    return Electorate(since, faults, tuple(named(first + place) for place in range(VOTERS)))


def header(
    number: int, who: Electorate, signers: int | None = None, after: Electorate | None = None, **changes: object
) -> Header:
    """Signed by the first voters of `who`, or by all, and by those who vote `after` the entry."""
    roots = [electorate_root(BRANCH, each) for each in (who, after or who)]
    subject = Subject(BRANCH, number, 0, Phase.COMMIT, NO_DIGEST, digest("entry"), digest("register"), *roots)
    subject = replace(subject, **changes)  # type: ignore[arg-type]
    proofs = []
    for voter in dict.fromkeys((*who.voters[:signers], *(after.voters if after is not None else ()))):
        vote = signed(Vote(subject, voter.peer, voter.life, b""), FakeSigner(voter.peer))
        proofs.append(Proof(voter.peer, vote.signature))
    return Header(Certificate(subject, tuple(proofs)), who, after)


@pytest.mark.parametrize(("trust", "faults"), [(Crash, 0), (Byzantine, 2)])
def test_who_joins_after_a_hundred_thousand_rounds_reads_less_than_a_megabyte(trust: type, faults: int) -> None:
    """All seven voters were replaced, one by one, in every thousand rounds."""
    every = TURNOVER // VOTERS
    changes = range(0, ROUNDS, every)
    voters = [electorate(place, number, faults) for place, number in enumerate(changes)]
    headers = [header(after.since, before, after=after) for before, after in pairwise(voters)]
    first = voters[0]
    rules = rules_of(trust, DONOR)
    chosen = fewest(first, headers)
    number, root = follow_all(BRANCH, first, chosen, rules, DONOR)
    assert (number, root) == (changes[-1], digest("register"))
    size = len(encode_value(chosen)) + sum(len(each.certificate.proofs) for each in chosen) * (ED25519 - SIZE)
    print(f"{trust.__name__}: {len(headers)} changes of voters, {len(chosen)} headers, {size:,} bytes")
    assert size < 1_000_000


def test_a_founder_leads_to_those_it_has_made_voters() -> None:
    founder = founded(BRANCH, named(0).peer, named(0).life)
    rules = rules_of(Crash, DONOR)
    assert follow(BRANCH, electorate_of(founder), header(9, electorate(0, 5)), rules, DONOR) == electorate(0, 5)
    made = header(5, electorate_of(founder), after=electorate(0, 5))  # after which it may be gone for good
    assert follow(BRANCH, electorate_of(founder), made, rules, DONOR) == electorate(0, 5)


RULES: Rules = rules_of(Byzantine, DONOR)
TRUSTED = electorate(0, 10, faults=2)
NEXT = electorate(3, 20, faults=2)  # four of the trusted are among them
RIGHT = header(21, NEXT)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (replace(RIGHT, electorate=electorate(2, 20, 2)), "other voters"),
        (header(21, NEXT, branch=NO_DIGEST), "another branch"),
        (header(21, NEXT, phase=Phase.PREPARE), "decides nothing"),
        (header(5, electorate(3, 4, 2)), "leads back"),
        (header(21, electorate(5, 20, 2)), "too few"),  # two of the trusted may both be liars
        (header(21, NEXT, signers=4), "without a quorum"),
        (replace(header(20, TRUSTED, after=NEXT), after=None), "other voters"),
        (replace(header(20, TRUSTED), after=NEXT), "other voters"),
        (header(21, replace(NEXT, voters=tuple(replace(each, life=1) for each in NEXT.voters))), "too few"),
        (replace(RIGHT, certificate=replace(RIGHT.certificate, proofs=(RIGHT.certificate.proofs[0],) * 7)), "too few"),
        (
            replace(
                RIGHT,
                certificate=replace(
                    RIGHT.certificate,
                    proofs=tuple(replace(each, signature=bytes(SIZE)) for each in RIGHT.certificate.proofs),
                ),
            ),
            "forged",
        ),
    ],
)
def test_a_forged_header_leads_nowhere_and_names_its_donor(forged: Header, why: str) -> None:
    with pytest.raises(RemoteError, match=why) as error:
        follow(BRANCH, TRUSTED, forged, RULES, DONOR)
    assert error.value.peer == DONOR
    assert follow(BRANCH, TRUSTED, RIGHT, RULES, DONOR) == NEXT


def test_where_nobody_vouches_there_is_no_way() -> None:
    assert fewest(TRUSTED, [header(21, electorate(50, 20, 2))]) == []
    with pytest.raises(RemoteError, match="no header"):
        follow_all(BRANCH, TRUSTED, [], RULES, DONOR)
