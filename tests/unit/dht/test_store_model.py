"""Whatever is put into a small store, in whatever order: its promises hold after each step.

The model knows all that was ever put and none of the store's tables. It looks at what is gone after each put and
asks whether it was allowed to go.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.dht.keys import COPIES
from shoal.dht.record import Slot, rank, slot_of
from shoal.dht.store import Limits, RecordStore
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Record, StoreResult
from tests.unit.dht.record_kit import NOW, key_of, unsigned

LIMITS = Limits(records=10, per_key=6, per_peer=5, per_author_and_key=2)
KEYS = [key_of(name) for name in "123"]
PEERS = [PeerId(name) for name in "abcdefgh"]

records = st.builds(
    unsigned,
    author=st.sampled_from(PEERS),
    key=st.sampled_from(KEYS),
    subkey=st.sampled_from(["", "x", "y", "z"]),
    value=st.sampled_from([b"", b"v"]),
    sequence=st.integers(1, 3),
    expires=st.integers(NOW + 5, NOW + 40),
)


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = float(NOW)
        self.store = RecordStore(PeerId("us"), LIMITS)
        self.accounts: dict[Slot, PeerId] = {}

    @rule(record=records, copy=st.integers(0, COPIES - 1), sender=st.none() | st.sampled_from(PEERS))
    def put(self, record: Record, copy: int, sender: PeerId | None) -> None:
        before, sender = self.held(), sender or record.author
        result = self.store.put(self.now, record, copy, sender)
        after, slot = self.held(), slot_of(record)
        if slot in before and record.expires > self.now:
            assert after == before | {slot: max(before[slot], record, key=rank)}
            is_older = rank(record) < rank(before[slot])
            assert result is (StoreResult.OUTDATED if is_older else StoreResult.HELD)
        elif result is not StoreResult.HELD:
            assert after == before
        else:
            assert after[slot] == record
            self.check_losers(before, after, record, sender)
        self.keep_accounts(after, slot, result, sender)

    def check_losers(self, before: dict[Slot, Record], after: dict[Slot, Record], new: Record, sender: PeerId) -> None:
        """Whoever lost something was the author or the account, or had more than the newcomer has now."""
        assert set(after) <= set(before) | {slot_of(new)}
        in_all = Counter(self.accounts[slot] for slot in before)
        in_key = Counter(self.accounts[slot] for slot in before if slot[0] == new.key)
        for slot in [slot for slot in before if slot not in after]:
            account = self.accounts[slot]
            if slot[1] == new.author or account == sender:
                continue
            shares = [in_all] if slot[0] != new.key else [in_key, in_all]
            assert any(share[account] == max(share.values()) > share[sender] + 1 for share in shares)

    def keep_accounts(self, after: dict[Slot, Record], slot: Slot, result: StoreResult, sender: PeerId) -> None:
        full = Counter(self.accounts.values())[sender] >= LIMITS.per_peer
        known = self.accounts
        self.accounts = {each: known[each] for each in after if each in known}
        if result is StoreResult.HELD and (slot not in known or (sender == slot[1] and not full)):
            self.accounts[slot] = sender

    @rule(seconds=st.floats(0.1, 12))
    def wait(self, seconds: float) -> None:
        before = self.held()
        self.now += seconds
        self.store.expire(self.now)
        left = {slot: record for slot, record in before.items() if record.expires > self.now}
        assert len(self.store) == len(left)
        assert self.held() == left
        self.accounts = {slot: self.accounts[slot] for slot in left}

    @rule(period=st.floats(1, 20), most=st.integers(0, 5))
    def republish(self, period: float, most: int) -> None:
        due = self.store.due(self.now, period, most)
        assert len(due) <= most
        assert all(self.held()[slot_of(record)] == record for record, _ in due)
        assert len({(slot_of(record), copy) for record, copy in due}) == len(due)
        if len(due) < most:
            assert self.store.due(self.now, period, most) == []

    @invariant()
    def bounds_hold(self) -> None:
        held = self.held()
        assert len(held) == len(self.store) <= LIMITS.records
        slots = list(held)
        assert max(Counter(slot[0] for slot in slots).values(), default=0) <= LIMITS.per_key
        assert max(Counter(slot[1] for slot in slots).values(), default=0) <= LIMITS.per_peer
        assert max(Counter(slot[:2] for slot in slots).values(), default=0) <= LIMITS.per_author_and_key
        assert max(Counter(self.accounts.values()).values(), default=0) <= LIMITS.per_peer
        assert set(self.accounts) == set(held)

    def held(self) -> dict[Slot, Record]:
        found = [record for key in KEYS for record in self.store.find(self.now, key, (), 1 << 20)[0]]
        return {slot_of(record): record for record in found}


StoreModel.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
TestStore = StoreModel.TestCase
