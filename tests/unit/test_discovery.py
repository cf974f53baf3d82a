"""The clock of the DHT's shell."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.node.discovery import SUSPENDED, Discovery
from shoal.protocol.identity import Identity
from shoal.protocol.network import Network


@pytest.mark.asyncio
async def test_the_clock_never_goes_back_and_follows_after_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity.generate()
    discovery = Discovery(identity, Network(identity, host="127.0.0.1", port=0))
    discovery._origin = time.time() - asyncio.get_running_loop().time()
    began, wall = discovery.now(), time.time()
    for ahead, least in ((-3600.0, 0.0), (SUSPENDED / 2, 0.0), (3600.0, 3599.0), (-3600.0, 3599.0)):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: wall + ahead)
        assert least <= discovery.now() - began < least + 60
