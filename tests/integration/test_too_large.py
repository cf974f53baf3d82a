"""A run that does not fit into memory is refused at once, with the numbers and what would fit; the node goes on."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.dht.link import format_link
from shoal.node.base.home import Home
from shoal.node.client.up.processes import Children
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.run.founding import new_run
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.genesis import NONCE_SIZE
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import PATIENCE, RealNode, until
from tests.limits import MIB, in_control_group, with_address_space
from tests.unit.checkpoint_kit import write

GIANT = 'name = "giant"\n[model]\ndim = 16384\nlayers = 64\n'
BIG = 'name = "big"\n[model]\ndim = 512\nlayers = 6\nhidden = 1024\n[rounds]\nmin_members = 2\n'  # 55 MB of parameters
AT_ONCE = 30.0  # seconds, on a machine that is busy; who makes such a model before it refuses it takes minutes
SUM = (
    r"52,753,874,944 parameters \(196.5 GiB\) take 1.9 TiB for the node, which holds the state 2 times \(786.1 GiB\), "
    r"and 1.1 TiB more for its worker \(589.6 GiB for weights and gradients, 393.0 GiB for moments, .* in all"
)
FITS = r"has .* of memory, of which .* are free now. What would fit: .*dim = \d+"


def shoal(home: Home, *arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str, float]:
    """Exit code, all that was said, and seconds."""
    environ = {**os.environ, "SHOAL_HOME": str(home.root), "OPENBLAS_NUM_THREADS": "1"}
    begin, argv = time.monotonic(), [*prefix, sys.executable, "-P", "-m", "shoal.node", *arguments]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


@contextmanager
def introducer(text: str) -> Iterator[str]:
    """A peer that knows the run of a manifest; the run's link."""
    manifest, identity = parse_manifest(text), Identity.generate()
    run = new_run(manifest, identity, bytes(NONCE_SIZE))
    links: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        network = Network(identity, host="127.0.0.1", port=0)

        def answer(_: object, message: Message) -> Message:
            if not isinstance(message, GetManifest):
                return Refused("nothing else is here")
            members = ((identity.peer, network.addresses()),)
            return ManifestIs(run.genesis, members, 1, 0, 0.0, 0, NO_DIGEST)

        await network.start(Handlers(on_call=answer))
        links.append(format_link(run.run, network.addresses()))
        ready.set()
        await asyncio.to_thread(over.wait)
        await network.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield links[0]
    finally:
        over.set()
        thread.join()


def test_a_giant_is_refused_at_once_by_every_way_in(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "giant.toml"
    manifest.write_text(GIANT)
    node = RealNode(tmp_path / "node").start(children)
    code, said, seconds = shoal(node.home, "run", "create", str(manifest))
    assert (code, re.search(SUM, said) is None, re.search(FITS, said) is None) == (1, False, False), said
    assert seconds < AT_ONCE
    with introducer(GIANT) as link:
        code, said, seconds = shoal(node.home, "run", "preview", link)
        assert (code, re.search(SUM, said) is None, re.search(FITS, said) is None) == (0, False, False), said
        assert seconds < AT_ONCE
        code, said, seconds = shoal(node.home, "run", "join", "--yes", link)
        assert (code, re.search(SUM, said) is None, re.search(FITS, said) is None) == (1, False, False), said
        assert seconds < AT_ONCE
        with pytest.raises(LocalError, match=r"393\.0 GiB for moments|too large for this machine"):
            node.client.join_run(link, train=False)  # also for the node alone
    assert node.client.status()["runs"] == []
    assert "Traceback" not in node.words()


def test_a_play_of_giants_begins_with_no_peer(tmp_path: Path) -> None:
    manifest, out = tmp_path / "giant.toml", tmp_path / "out"
    manifest.write_text(GIANT)
    code, said, seconds = shoal(Home(tmp_path), "up", "--manifest", str(manifest), "--out", str(out))
    assert (code, re.search(SUM, said) is None, re.search(FITS, said) is None) == (1, False, False), said
    assert "; 4 of them take " in said
    assert seconds < AT_ONCE
    assert not out.exists()


@pytest.mark.slow
def test_a_limit_of_address_space_counts(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node")
    node.prefix = with_address_space(900 * MIB)
    node.start(children)
    with pytest.raises(LocalError, match=r"too large for this machine: .*a process here \(ulimit -v\) has 900\.0 MiB"):
        node.client.create_run(BIG.replace("layers = 6", "layers = 24"), False)
    words = r"'big' is not entered: memory has run out: .*a process here \(ulimit -v\) has 900\.0 MiB"
    with pytest.raises(LocalError, match=words):  # the sum is not too much, but with torch, which is not loaded yet
        node.client.create_run(BIG, False)
    assert node.client.status()["runs"] == []
    assert "made a mistake" not in node.words()


@pytest.mark.slow
def test_a_control_group_counts_also_at_a_restart(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node").start(children)
    run = str(node.client.create_run(BIG, False)["run"])
    node.client.stop()
    until(lambda: not node.is_running, "the end", node.words)
    with in_control_group(500 * MIB) as prefix:
        node.prefix = prefix
        node.start(children)

        def row() -> dict[str, object]:
            return dict(next(each for each in node.client.status()["runs"] if each["run"] == run))

        until(lambda: row()["waiting_for"], "a word on it", node.words)
        assert row()["phase"] == "restoring"
        assert "control group (container or service) of this process has 500.0 MiB" in str(row()["waiting_for"])
        code, said, _ = shoal(node.home, "status", "--exit-code")
        assert code == 7
        assert "too large for this machine" in said
        with pytest.raises(LocalError, match=r"too large for this machine: .* What would fit: .* such layer"):
            node.client.create_run(BIG.replace('"big"', '"other"'), False)
        node.client.stop()
        until(lambda: not node.is_running, "the end", node.words)
    node.prefix = ()
    node.start(children)
    until(lambda: row()["phase"] == "matching", "the run", node.words)


@pytest.mark.parametrize("command", ["ckpt export", "ckpt verify", "generate", "serve"])
def test_who_opens_a_model_without_room_is_told_so(tmp_path: Path, command: str) -> None:
    """There is none for torch here, which is what comes first: no traceback, and not the checkpoint's fault."""
    checkpoint = write(tmp_path, 6)
    more = {"ckpt export": [str(tmp_path / "out")], "generate": ["Once"]}.get(command, [])
    small = with_address_space(350 * MIB)
    code, said, _ = shoal(Home(tmp_path / "home"), *command.split(), str(checkpoint), *more, prefix=small)
    assert (code, said.count("\n")) == (1, 1), said
    assert re.match(r"shoal: .*memory has run out(: .*a process here \(ulimit -v\) has 350\.0 MiB)?", said), said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_own_text_counts_before_a_run_or_a_play_begins(children: Children, tmp_path: Path) -> None:
    """In a control group that has room for the model, and for one peer, but not for as many copies of the text."""
    manifest, text, out = tmp_path / "own.toml", tmp_path / "text.txt", tmp_path / "out"
    manifest.write_text('name = "own"\n[model]\ndim = 16\nlayers = 1\n[data]\nname = "files"\n')
    text.write_bytes(b"The quick brown fox jumps over the dog\n" * (200 * MIB // 40))
    with in_control_group(500 * MIB) as prefix:
        node = RealNode(tmp_path / "node")
        node.prefix = prefix
        node.start(children, data=(text,))
        with pytest.raises(LocalError, match=r"'own' is too large for this machine: .* a text of at most"):
            node.client.create_run(manifest.read_text(), True)
        assert node.client.status()["runs"] == []
        node.client.stop()
        until(lambda: not node.is_running, "the end", node.words)
    text.write_bytes(b"The quick brown fox jumps over the dog\n" * (70 * MIB // 40))
    with in_control_group(1100 * MIB) as prefix:
        faults = "--kill-at", "none", "--join-at", "none"
        own = "--manifest", str(manifest), "--data", str(text), "--out", str(out)
        code, said, _ = shoal(Home(tmp_path), "up", "--peers", "6", *faults, *own, prefix=prefix)
    assert (code, re.search(r"6 of them take .* the same with --peers \d, ", said) is None) == (1, False), said
    assert not list((out / "peers").glob("*")), "no peer was started"


@pytest.mark.slow
def test_text_that_a_play_cannot_hold_is_refused_while_it_is_read(tmp_path: Path) -> None:
    """Who reads all of it is ended by the system, without a word."""
    text, out = tmp_path / "text", tmp_path / "out"
    text.mkdir()
    for number in range(8):
        (text / f"{number}.txt").write_bytes(b"The quick brown fox jumps over the dog\n" * (80 * MIB // 40))
    with in_control_group(700 * MIB) as prefix:
        code, said, _ = shoal(Home(tmp_path), "up", "--data", str(text), "--out", str(out), prefix=prefix)
    assert code == 1, said
    assert re.search(r"corpus failed: joining the text .* takes .* of memory, and the control group", said), said
