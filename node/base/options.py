"""The options of the command line, as frozen values that are checked once, here.

They are private to one machine and never enter a run's manifest. For a combination that makes no sense, a UsageError
says which flag to change, before anything is started.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from shoal.node.base.schedule import Schedule
from shoal.node.base.step_options import MAX_MICRO_BATCH, TrainerOptions
from shoal.protocol.base.errors import LocalError

P2P_PORT = 4101
ADMIN_PORT = 4180
ADMIN_HOST = "127.0.0.1"
LISTEN_HOST = "0.0.0.0"
CHECKPOINT_EVERY = 10  # rounds: a round of a real run takes minutes, and a checkpoint is four times the model
CHECKPOINT_KEEP = 3
DATA_LIMIT = 8.0  # GiB
AUTO = "auto"  # the fastest device that torch finds
UP_CHECKPOINT_EVERY = 4
MAX_LOCAL_PEERS = 64
MAX_DATA_LIMIT = 4096  # GiB
MIN_RATE = 8_000  # bytes a second: control messages alone may need as much
MIN_PER_DAY = 100_000_000  # bytes: even an idle node needs a part of it
MAX_IDLE = 24 * 60  # minutes
MAX_SEED = 2**63 - 1


class UsageError(LocalError):
    """The command line makes no sense; nothing was started."""

    code = "usage"


def is_run_id(text: str, *, whole: bool = False) -> bool:
    """Whether `text` looks like the id of a run or, unless `whole`, like a long enough prefix of one."""
    return re.fullmatch(r"[0-9a-fA-F]{64}" if whole else r"[0-9a-fA-F]{8,64}", text) is not None


def names_a_run(text: str) -> bool:
    """Whether `text` is a run's link, its id or a prefix of that; UsageError for a malformed link."""
    if is_run_id(text):
        return True
    from shoal.dht.link import looks_like_link, parse_link

    if not looks_like_link(text):
        return False
    try:
        parse_link(text)
    except LocalError as error:
        raise UsageError(str(error), code=error.code) from error
    return True


def default_threads() -> int:
    """Half of the cores; 1 on small machines, as two workers of two threads on two cores ran twenty times slower."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this system, or refused by a sandbox
        cores = os.cpu_count() or 1
    return 1 if cores <= 4 else cores // 2


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How one node runs on this machine."""

    home: Path
    port: int = P2P_PORT  # for control; bulk sockets take the next one. 0: any free one
    listen_host: str = LISTEN_HOST
    admin_host: str = ADMIN_HOST
    admin_port: int = ADMIN_PORT  # 0: any free one
    bootstrap: tuple[str, ...] = ()  # multiaddrs; without /p2p/<peer>, any peer that answers there is meant
    threads: int = field(default_factory=default_threads)  # of a worker
    device: str = AUTO  # on which a worker trains
    data: tuple[Path, ...] = ()  # local files and folders, for runs on one's own text
    create: Path | None = None  # a manifest: found its run, unless the node is in it already
    join: tuple[str, ...] = ()  # runs to join, each by its link, its id, a prefix of that, or its manifest
    train: bool = True  # whether to train in the runs of `create` and `join`
    checkpoint_every: int = CHECKPOINT_EVERY  # rounds; 0: never
    checkpoint_keep: int = CHECKPOINT_KEEP
    mdns: bool = True  # find peers on the local network, and be found; never if only the loopback is listened on
    port_mapping: bool = True  # ask the home router to forward our port
    data_limit: float = DATA_LIMIT  # GiB of a run's data that this node downloads at most; 0: nothing
    share_data: bool = True  # serve the data of its runs to other members
    max_up: int | None = None  # bytes a second on the wire that the node sends; None: unlimited
    max_down: int | None = None  # the same for what it receives
    max_per_day: int | None = None  # bytes on the wire, both ways, from midnight to midnight (UTC)
    schedule: Schedule | None = None  # the hours in which the node may work; None: always
    only_when_idle: int = 0  # minutes for which nobody must have used this machine; 0: any
    only_on_mains: bool = False  # pause while the machine runs on its battery
    yield_gpu: bool = False  # pause while another process uses a GPU
    trainer: TrainerOptions = field(default_factory=TrainerOptions)  # how a worker makes its steps

    def __post_init__(self) -> None:
        for flag, port in (("--port", self.port), ("--admin-port", self.admin_port)):
            _require(0 <= port < 65535, f"{flag} {port} is not a port: use 1 to 65534, or 0 for any free one")
        _require(
            _is_ip(self.listen_host),
            f"--listen-host {self.listen_host} is no IP address: give one of this machine's, or 0.0.0.0 for all",
        )
        for address in self.bootstrap:
            _require(
                address.startswith("/") and "/tcp/" in address,
                f"--bootstrap {address} is not a peer's address: it looks like "
                "/ip4/192.0.2.7/tcp/4101/p2p/12D3Koo..., and `shoal status` on that peer prints it",
            )
        _require(1 <= self.threads <= 1024, f"--threads {self.threads} makes no sense: use 1 to 1024")
        check_device(self.device)
        _require(
            0 <= self.trainer.micro_batch <= MAX_MICRO_BATCH,
            f"--micro-batch {self.trainer.micro_batch}: give a number of sequences, at most {MAX_MICRO_BATCH}, or 0 "
            "for as many as fit",
        )
        _check_checkpoints(self.checkpoint_every, self.checkpoint_keep)
        _require(
            0 <= self.data_limit <= MAX_DATA_LIMIT,
            f"--data-limit {self.data_limit:g}: give a number of GiB, 0 for none, at most {MAX_DATA_LIMIT}",
        )
        for flag, rate in (("--max-up", self.max_up), ("--max-down", self.max_down)):
            _require(rate is None or rate >= MIN_RATE, f"{flag}: at least {MIN_RATE} bytes a second")
        _require(
            self.max_per_day is None or self.max_per_day >= MIN_PER_DAY, f"--max-per-day: at least {MIN_PER_DAY} bytes"
        )
        _require(
            0 <= self.only_when_idle <= MAX_IDLE,
            f"--only-when-idle {self.only_when_idle}: give a number of minutes, 0 for always, at most {MAX_IDLE}",
        )
        for path in self.data:
            _check_there(path, "--data")
        for folder in self.trainer.folders:
            _check_folder(folder, "--weights")
        if self.create is not None:
            _check_there(self.create, "--create")
            _require(self.create.is_file(), f"--create {self.create} is not a file: name a run's manifest")
        for run in self.join:
            _require(
                names_a_run(run) or Path(run).is_file(),
                f"--join {run} is neither a run's link (shoal2...), nor its id (64 hex characters, or the first 8 or "
                "more), nor its manifest",
            )


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of `shoal up`: a local swarm, with one death and one newcomer. Rounds count from 1."""

    peers: int = 4
    rounds: int = 12
    kill_at: int | None = 4  # round in whose all-reduce one peer is killed
    join_at: int | None = 6  # the first round in which a new peer is to take part
    data: tuple[Path, ...] = ()
    manifest: Path | None = None  # None: the built-in one
    baseline: bool = False
    out: Path | None = None
    seed: int = 0
    json: bool = False
    resume: Path | None = None  # the --out of an earlier play, whose peers and manifest are used again
    checkpoint_every: int = UP_CHECKPOINT_EVERY
    devices: tuple[str, ...] = (AUTO,)  # dealt to the peers in turn
    weights: tuple[Path, ...] = ()  # folders with the frozen weights of runs of adapters

    def __post_init__(self) -> None:
        _require(
            2 <= self.peers <= MAX_LOCAL_PEERS,
            f"--peers {self.peers}: a local swarm has 2 to {MAX_LOCAL_PEERS}",
        )
        _require(self.rounds >= 1, f"--rounds {self.rounds}: there must be at least one round")
        _require(0 <= self.seed <= MAX_SEED, f"--seed {self.seed}: use a number from 0 to 2^63 - 1")
        self._check_faults()
        _check_checkpoints(self.checkpoint_every, CHECKPOINT_KEEP)
        for device in self.devices:
            check_device(device)
        for path in self.data:
            _check_there(path, "--data")
        for folder in self.weights:
            _check_folder(folder, "--weights")
        if self.manifest is not None:
            _check_there(self.manifest, "--manifest")
            _require(self.manifest.is_file(), f"--manifest {self.manifest} is not a file")
        if self.out is not None:
            _require(self.out.is_dir() or not self.out.exists(), f"--out {self.out} exists and is not a folder")

    def _check_faults(self) -> None:
        if self.kill_at is not None:
            _require(
                1 <= self.kill_at <= self.rounds,
                f"--kill-at {self.kill_at}: the rounds are 1 to {self.rounds}; use one of them, or none",
            )
            _require(
                self.peers >= 3,
                f"--kill-at {self.kill_at} with --peers {self.peers} leaves one peer, which cannot average "
                "alone: use --peers 3 or more, or --kill-at none",
            )
        if self.join_at is not None:
            _require(
                1 <= self.join_at < self.rounds,
                f"--join-at {self.join_at}: a newcomer that takes long is first in the next round, so with --rounds "
                f"{self.rounds} it must come before round {self.rounds}; or use none",
            )


def check_device(device: str) -> None:
    """UsageError unless `device` is "auto" or named as torch names devices."""
    _require(
        re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", device) is not None,
        f"--device {device} is no device: use auto, cpu, mps, cuda, or cuda:1 for the second GPU",
    )


def _check_checkpoints(every: int, keep: int) -> None:
    _require(every >= 0, f"--checkpoint-every {every}: give a number of rounds, or 0 for none")
    _require(keep >= 1, f"--checkpoint-keep {keep}: the newest one is always kept, so at least 1")


def _is_ip(host: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _check_there(path: Path, flag: str) -> None:
    """UsageError unless the path exists and can be read."""
    from shoal.node.base.textfile import shown, unreadable  # not at the top: `shoal --help` needs neither

    try:
        path.stat()
    except FileNotFoundError as error:
        what = "is a link to nothing" if path.is_symlink() else "does not exist"
        raise UsageError(f"{flag} {shown(path)} {what}", code="unreadable") from error
    except OSError as error:
        raise UsageError(unreadable(f"{flag} {shown(path)}", error), code="unreadable") from error


def _check_folder(path: Path, flag: str) -> None:
    """UsageError unless the path is a folder that can be read."""
    from shoal.node.base.textfile import shown

    _check_there(path, flag)
    _require(path.is_dir(), f"{flag} {shown(path)} is not a folder")


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise UsageError(otherwise, code="bad-value")
