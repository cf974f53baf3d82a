"""The plan of one `shoal up`, which is complete before anything is started.

The manifest is the user's or the built-in one, with what the command line sets: the seed, the last round, the number of
members that start it, and the text of --data, after which a run by the built-in manifest is named. A play is
reproducible: if no peer dies or comes, the same seed gives the same bits, however busy the machine is. So no peer hands
in early (pace `steps`), and the peers' keys and the run's nonce follow from the seed: seats and data lanes follow from
peer ids. Such keys are no secret, and safe on loopback only.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from shoal.node.base.devices import has_gpu
from shoal.node.base.home import Home
from shoal.node.base.options import AUTO, UP_CHECKPOINT_EVERY, UpOptions, UsageError
from shoal.node.base.room import available_memory
from shoal.node.base.toml import dump
from shoal.node.client.up.resume import Resumption
from shoal.node.manifest.fitting import Load, check_fits
from shoal.node.manifest.manifest import DataSpec, Manifest, load_manifest, parse_manifest
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest
from shoal.protocol.messages.genesis import NONCE_SIZE
from shoal.protocol.net.system.identity import Identity

RUNS = Path("runs")  # where results go without --out
READING = {"tokenizer", "end_of_text", "column", "domain"}  # keys of a manifest's data that say how text is read
LONGEST_NAME, OWN_TEXT = 64, "text"  # characters of a run's name; the name where that of the data has none
VALIDATION_LEAST = 2  # bytes: one that follows from another


@dataclass(frozen=True, slots=True)
class Plan:
    """One play: its peers, which of them dies or comes when, and where everything is written."""

    out: Path
    manifest: Manifest
    peers: tuple[str, ...]  # the founder first
    rounds: int
    kill_at: int | None
    join_at: int | None
    data: tuple[Path, ...]
    checkpoint_every: int = UP_CHECKPOINT_EVERY
    resumed: Resumption | None = None
    devices: tuple[str, ...] = (AUTO,)
    weights: tuple[Path, ...] = ()

    @property
    def to_commit(self) -> int:
        """How many rounds this play has."""
        return self.rounds - (self.resumed.round if self.resumed else 0)

    def checkpoint_of(self, peer: str) -> str:
        """The folder of the checkpoint that `peer` begins with; empty if it has none."""
        held = self.resumed.checkpoints.get(peer) if self.resumed else None
        return str(held.absolute()) if held else ""

    def device_of(self, peer: str) -> str:
        """The device that `peer` trains on: peers take the devices in turn, the newcomer last."""
        return self.devices[(*self.peers, self.newcomer).index(peer) % len(self.devices)]

    @property
    def victim(self) -> str | None:
        """The peer that is killed: the last of those that start, never the founder."""
        return self.peers[-1] if self.kill_at else None

    @property
    def newcomer(self) -> str | None:
        """The peer that joins later."""
        return f"peer-{len(self.peers) + 1}" if self.join_at else None

    def give_key(self, peer: str, home: Home) -> None:
        """Write the key of `peer` to its new home: its earlier one, or one that follows from the seed and its name."""
        if self.resumed is not None:
            self.resumed.hand_key(peer, home)
        else:
            seed = digest("key of a play", self.manifest.seed.to_bytes(8, "little"), peer.encode())
            Identity.of_seed(seed).keep(home.create().identity_key)

    @property
    def nonce(self) -> str:
        """That of the run, in hex; a play that goes on from another has another run."""
        after, seed = self.resumed.round if self.resumed else 0, self.manifest.seed
        return digest("nonce of a play", seed.to_bytes(8, "little"), after.to_bytes(8, "little"))[:NONCE_SIZE].hex()

    def facts(self) -> dict[str, Any]:
        """The plan in metrics.jsonl."""
        return {
            "run": self.manifest.name,
            "peers": self.peers,
            "rounds": self.rounds,
            "resumed_from": self.resumed.round if self.resumed else None,
            "victim": self.victim,
            "kill_at": self.kill_at,
            "newcomer": self.newcomer,
            "join_at": self.join_at,
        }

    @property
    def manifest_file(self) -> Path:
        """Where the play's manifest is written."""
        return self.out / "manifest.toml"


def builtin_manifest() -> Manifest:
    """The manifest that comes with Shoal."""
    text = files("shoal.node.client.up").joinpath("stdlib.toml").read_text(encoding="utf-8")
    return parse_manifest(text, "the built-in manifest")


def chosen_manifest(options: UpOptions, corpus: str = "") -> Manifest:
    """The manifest that the options ask for; `corpus` is the digest of --data in hex."""
    base = load_manifest(options.manifest) if options.manifest else builtin_manifest()
    if base.data.name == "files" and not options.data:
        raise UsageError(
            f"--manifest {options.manifest} is about text of your own: name it with --data", code="data-missing"
        )
    fixed = {"last": options.rounds, "start_members": options.peers, "pace": "steps"}
    rounds = base.rounds.model_copy(update=fixed)
    own = DataSpec(name="files", digest=corpus).model_copy(update=base.data.model_dump(include=READING))
    data = own if options.data else base.data
    name = base.name if options.manifest or not options.data else name_after(options.data[0])
    manifest = base.model_copy(update={"name": name, "seed": options.seed, "rounds": rounds, "data": data})
    left = options.peers - (1 if options.kill_at else 0)
    if manifest.rounds.min_members > left:
        raise UsageError(
            f"the manifest wants at least {manifest.rounds.min_members} members and this swarm "
            f"{'comes down to' if options.kill_at else 'has'} {left}: use --peers "
            f"{options.peers + manifest.rounds.min_members - left} or more",
            code="bad-flags",
        )
    return manifest


def name_after(path: Path) -> str:
    """A valid name of a run, after a file without its ending, or a folder."""
    path = Path(os.path.abspath(path))  # without following links, whose ends may have names that nobody chose
    name = path.name if path.is_dir() else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:LONGEST_NAME] or OWN_TEXT


def resumed_manifest(options: UpOptions, resumed: Resumption, corpus: str = "") -> Manifest:
    """The manifest of a play that goes on from an earlier one; `corpus` is the digest of --data in hex."""
    manifest = resumed.manifest(options.rounds)
    if manifest.data.name == "files" and not options.data:
        raise UsageError(f"{resumed.folder} is about text of your own: name it with --data", code="data-missing")
    if options.data and manifest.data.digest != corpus:
        raise UsageError(f"--data is not the text that {resumed.folder} is about", code="other-data")
    return manifest


def check_room(manifest: Manifest, options: UpOptions, text: int = 0) -> None:
    """NoRoom unless all peers of the play fit into this machine's memory.

    `text` is the size of --data in bytes, once known. The size of a model of transformers only the founder finds out.
    """
    if manifest.model.is_complete:
        least = max(2, manifest.rounds.min_members) + (1 if options.kill_at else 0)
        fewest = options.peers if options.resume else least
        load = Load(has_gpu=all(map(has_gpu, options.devices)), nodes=options.peers, fewest=fewest, text=text)
        check_fits(manifest, available_memory(), load)


def check_text(manifest: Manifest, train: int, validation: int) -> None:
    """LocalError if the text of --data has too few bytes. How many tokens a tokenizer makes of it is not known here."""
    if manifest.data.tokenizer or not manifest.model.is_complete:
        return
    window = manifest.model.context + 1
    if train < window or validation < VALIDATION_LEAST:
        raise LocalError(
            f"the text of --data is too short: it has {train:,} bytes to train on and {validation:,} to validate with, "
            f"and must have at least {window:,} and {VALIDATION_LEAST}",
            code="data-empty",
        )


def make_plan(options: UpOptions, out: Path, manifest: Manifest, resumed: Resumption | None = None) -> Plan:
    """The plan for an output folder that is ready."""
    names = resumed.peers if resumed else tuple(f"peer-{number}" for number in range(1, options.peers + 1))
    data = tuple(path.absolute() for path in options.data)
    faults = (options.kill_at, options.join_at)
    weights = tuple(folder.absolute() for folder in options.weights)
    every, devices = options.checkpoint_every, options.devices
    return Plan(out, manifest, names, options.rounds, *faults, data, every, resumed, devices, weights)


def prepare_folder(out: Path | None) -> tuple[Path, Path]:
    """Make the output folder. Its absolute path, and the last part of that which was there before.

    UsageError if it is not empty or cannot be made.
    """
    folder = (out or _fresh(RUNS)).absolute()
    try:
        before = next(each for each in (folder, *folder.parents) if each.exists())
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--out {folder} is not empty: name a new folder, or empty it", code="already-there")
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be used: {error.strerror}", code="unwritable") from error
    return folder, before


def remove_folder(folder: Path, kept: Path) -> None:
    """Remove an output folder in which nothing has begun, and those above it up to `kept`, which were there before.

    What cannot be removed stays, and so does a folder into which somebody else has put something meanwhile.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for each in (folder, *folder.parents):
            if each == kept:
                break
            each.rmdir()


def to_toml(manifest: Manifest) -> str:
    """The manifest as a TOML file that reads back as the same run."""
    return dump(manifest.model_dump(mode="json"))


def _fresh(parent: Path) -> Path:
    """A folder that does not exist yet, named after the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    candidates = (parent / f"{stamp}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 100))))
    return next(path for path in candidates if not path.exists())
