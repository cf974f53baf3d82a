"""Situations in which something is wrong, and what a command says, does and leaves behind in each.

docs/bad-situations.md is printed from this table: `python -m tests.bad_situations > docs/bad-situations.md`. Most rows
are made and tried by tests/integration/test_bad_situations.py, with the real command; a row with a `test` is shown by
that test, which calls `shown` with the row's name.
"""

from __future__ import annotations

import errno
import hashlib
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from shoal.dht.link import format_link
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home
from shoal.protocol.base.errors import split_code
from shoal.protocol.base.ids import RunId
from shoal.protocol.net.system.identity import Identity
from tests.refusing import in_namespaces

NOTHING = "nothing"
OWN_FILES = "the folders, key, lock, logs and noted flags of a home"  # made before a node knows that it cannot start
GOES_ON = "the node goes on"
AS_BEFORE = "all is as it was"
REPORT = "its logs and a report"

OWN = {"home", "identity.key", "token", "lock", "logs", "daemon.log", "stacks.txt", "runs", "started.json"}
WHILE_IT_RAN = {"today.json", "peers.json", "data", "experts"}  # what a node has that did start

START = "node start --foreground --port 0 --admin-port 0 --no-mdns --no-port-mapping --listen-host 127.0.0.1"
LINK = format_link(RunId(bytes(range(32))), ["/ip4/127.0.0.1/tcp/9"])
LOOPBACK = "ip link set lo up"
SILENT_RESOLVER = """import os, socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("127.0.0.1", 53))
port.set_inheritable(True)
os.execv(sys.argv[1], sys.argv[1:])"""
UNREACHABLE = (
    "check that the node there runs, and with `shoal status` there that this is still its address; all others are "
    "tried meanwhile, and this one again"
)
CHANGED = LINK[:20] + ("a" if LINK[20] != "a" else "b") + LINK[21:]


@dataclass
class Place:
    """Where a situation is made: a folder, the home in it, and the environment of the command."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    held: ExitStack = field(default_factory=ExitStack)  # what stays open as long as the command runs
    prefix: list[str] = field(default_factory=list)  # of the command
    port: int = 4101  # for {port} and, after it, {next}
    node: str = "/ip4/..."  # the address of the node that is asked

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    def write(self, name: str, content: str | bytes) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def listen(self, port: int = 0) -> None:
        """Be another program at a port of the loopback, 0: at a free one, which is `port` from then on."""
        try:
            taken = self.held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # else another program is there already
                raise
        else:
            self.port = port or taken.getsockname()[1]

    def fill(self, words: str) -> str:
        """A command or a sentence of the table as it is here."""
        for name, value in (
            ("folder", self.folder), ("port", self.port), ("next", self.port + 1), ("node", self.node)
        ):  # fmt: skip
            words = words.replace(f"{{{name}}}", str(value))
        return words


Contents = Mapping[str, tuple[int, str]]  # by path: its mode, and the SHA-256 of what is in it


def contents(folder: Path) -> Contents:
    """All that is in a folder."""
    return {str(path.relative_to(folder)): (path.lstat().st_mode, _digest(path)) for path in sorted(folder.rglob("*"))}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@dataclass(frozen=True)
class Left:
    """What a command has left behind: names of new files and folders, and paths of those that are not as they were."""

    fresh: frozenset[str]
    changed: frozenset[str] = frozenset()

    @classmethod
    def in_folder(cls, folder: Path, before: Contents | None = None) -> Left:
        """What is in it now and was not before, where it was empty if nothing else is said."""
        known, now = before or {}, contents(folder)
        changed = frozenset(path for path, entry in known.items() if now.get(path) != entry)
        return cls(frozenset(Path(path).name for path in now.keys() - known.keys()), changed)


Make = Callable[[Place], object]


@dataclass(frozen=True)
class Situation:
    """One row: `command` are words after `shoal`, in which {folder}, {port} and {node} are replaced."""

    what: str
    command: str
    exit: Exit | int
    code: str  # shown in brackets; empty if a general one, or none
    says: str  # the sentence, or a piece of it; "..." stands for anything
    make: Make = lambda place: None
    left: str = NOTHING
    goes_on: bool = False  # the command starts a node, which says this in its log and runs until it is told to end
    asks: bool = False  # the command asks a node, which runs
    test: str = ""  # where it is shown, if not here
    by_fake: bool = False  # that test has a fake of the node, of the others, or of what fails
    slow: bool = False  # too like others to be tried each time


def _config(text: str | bytes) -> Make:
    return lambda place: place.write("home/config.toml", text)


def _secret(name: str, content: bytes, mode: int = 0o600) -> Make:
    return lambda place: place.write(f"home/{name}", content).chmod(mode)


def _manifest(text: str | bytes) -> Make:
    return lambda place: place.write("run.toml", text)


def _environ(**values: str) -> Make:
    return lambda place: place.environ.update(values)


def _listens(*ports: int) -> Make:

    def make(place: Place) -> None:
        for each in ports:
            place.listen(each)

    return make


def _namespaces(flags: str, script: str) -> Make:
    return lambda place: place.prefix.extend(in_namespaces(flags, place.fill(script)))


def _silent_resolver(place: Place) -> None:
    """The only name server is a port of the loopback, which the command itself holds open and never reads."""
    place.write("resolv.conf", "nameserver 127.0.0.1\n")
    _namespaces("-nm", f"{LOOPBACK}; mount --bind {{folder}}/resolv.conf /etc/resolv.conf")(place)
    place.prefix.extend([sys.executable, "-c", SILENT_RESOLVER])


def _key(place: Place, mode: int) -> None:
    path = place.folder / "home" / "identity.key"
    Identity.generate().keep(path)
    path.chmod(mode)


def _checkpoint(place: Place) -> Path:
    from tests.unit.checkpoint_kit import write

    return write(place.folder / "checkpoints", 4)


def _damaged(place: Place) -> None:
    from shoal.node.training.checkpoint.about import OUTER

    file = _checkpoint(place) / OUTER
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _stale(place: Place) -> None:
    place.home.create()
    place.home.lock.write_text("4711 1 1")
    place.write(
        "home/daemon.json", '{"pid": 4711, "admin_host": "127.0.0.1", "admin_port": 9, "peer": "x", "addresses": []}'
    )


def _no_tokenizer(place: Place) -> None:
    from shoal.node.manifest.data import DataSpec
    from tests.unit.checkpoint_kit import MANIFEST, write

    data = DataSpec(name="files", tokenizer="tokenizer.json")
    write(place.folder / "checkpoints", 4, MANIFEST.model_copy(update={"data": data}))


TINY = 'name = "tiny"\n'
ROOT = Path(__file__).parent.parent
UNIT, INTEGRATION = "tests/unit", "tests/integration"
REFUSALS, UP = f"{UNIT}/test_refusals.py", f"{UNIT}/test_up.py"

SITUATIONS = (
    # -- the home ------------------------------------------------------------------------------------------------
    Situation(
        "the home is a file",
        "node start",
        Exit.FAILED,
        "home-unusable",
        "cannot read ...: Not a directory; check the path: a part of it is a file",
        make=lambda place: place.write("home", "x"),
        left=AS_BEFORE,
    ),
    Situation(
        "the home is on a read-only mount",
        "node start",
        Exit.FAILED,
        "home-unusable",
        "cannot make the folder ...: Read-only file system; choose another SHOAL_HOME",
        test=f"{REFUSALS}::test_a_home_that_is_read_only",
    ),
    Situation(
        "the home's disk is full",
        "node start",
        Exit.FAILED,
        "no-room",
        "the node did not start: nothing can be written to its log: No space left on device; make room on that disk",
        left=OWN_FILES,
        test=f"{REFUSALS}::test_a_full_disk_is_said_though_the_log_cannot_say_it",
    ),
    Situation(
        "the home's file system has no locks",
        "status",
        Exit.FAILED,
        "home-unusable",
        "cannot lock ..., and without that two nodes could run in one folder: No locks available. "
        "Choose a SHOAL_HOME on a local disk",
        left=AS_BEFORE,
        test=f"{REFUSALS}::test_a_home_on_a_file_system_without_locks",
        by_fake=True,
    ),
    Situation(
        "SHOAL_HOME names a user who does not exist",
        "status",
        Exit.FAILED,
        "home-unknown",
        "SHOAL_HOME=~nobody-of-this-name/x: nobody here is called so; give the folder's whole path",
        make=_environ(SHOAL_HOME="~nobody-of-this-name/x"),
        slow=True,
    ),
    Situation(
        "the user has no home folder",
        "status",
        Exit.FAILED,
        "home-unknown",
        "this user ... has no home folder: the system does not know it, and HOME is not set. Set "
        "SHOAL_HOME to a folder for the node's files",
        test=f"{REFUSALS}::test_a_user_without_a_home_is_told_to_choose_one",
    ),
    Situation(
        "the current folder was deleted",
        "node start",
        Exit.FAILED,
        "folder-gone",
        "the folder in which this command was started is gone, or cannot be entered ...: change to "
        "another one first, as by `cd`",
        test=f"{REFUSALS}::test_a_current_folder_that_is_gone",
    ),
    # -- settings ------------------------------------------------------------------------------------------------
    Situation(
        "config.toml is not TOML",
        "node start",
        Exit.USAGE,
        "config-broken",
        "... is not TOML: Invalid value (at line 1, column 8): 'port' takes a whole number",
        make=_config("port = = 1\n"),
        left=AS_BEFORE,
    ),
    Situation(
        "config.toml has an unknown key",
        "node start",
        Exit.USAGE,
        "config-broken",
        "..., line 1: unknown key \"prot\"; the nearest known key is 'port'",
        make=_config("prot = 4101\n"),
        left=AS_BEFORE,
    ),
    Situation(
        "config.toml has a value of a wrong type",
        "node start",
        Exit.USAGE,
        "config-broken",
        '..., line 1: port = "many" is not a whole number',
        make=_config('port = "many"\n'),
        left=AS_BEFORE,
        slow=True,
    ),
    Situation(
        "config.toml is not UTF-8",
        "node start",
        Exit.USAGE,
        "config-broken",
        "line 1 of ... is no UTF-8 text, because of a byte 0xff: save it as UTF-8, for example with "
        "`iconv -f latin1 -t utf-8`",
        make=_config(b"# \xff\n"),
        left=AS_BEFORE,
    ),
    Situation(
        "a variable is wrong",
        "node start",
        Exit.USAGE,
        "bad-value",
        "SHOAL_PORT many is not a whole number",
        make=_environ(SHOAL_PORT="many"),
        slow=True,
    ),
    Situation(
        "a flag is wrong",
        "node start --max-up fast",
        Exit.USAGE,
        "bad-value",
        "--max-up fast is no rate: write it in bits, as 20Mbit, or in bytes, as 2.5MB/s",
    ),
    # -- keys and tokens -----------------------------------------------------------------------------------------
    Situation(
        "others can read the key",
        START,
        Exit.FAILED,
        "secret-open",
        "the key file ... is open to other users (mode 644): run `chmod 600 ...`, or delete it and get a "
        "new identity if somebody may have read it. Where its file system knows no modes, choose "
        "another folder",
        make=lambda place: _key(place, 0o644),
        left=OWN_FILES,
    ),
    Situation(
        "the key is damaged",
        START,
        Exit.FAILED,
        "secret-damaged",
        "... is not an Ed25519 key in libp2p's form; move it away and a new identity is made",
        make=_secret("identity.key", b"nonsense"),
        left=OWN_FILES,
    ),
    Situation(
        "others can read the token",
        START,
        Exit.FAILED,
        "secret-open",
        "... can be read by others (mode 644): run `chmod 600 ...`, or choose a SHOAL_HOME on a file "
        "system that knows modes",
        make=_secret("token", b"secret", 0o644),
        left=OWN_FILES,
    ),
    Situation(
        "the token is empty",
        START,
        Exit.FAILED,
        "secret-damaged",
        "... is empty: delete it, and the next start makes a new one",
        make=_secret("token", b""),
        left=OWN_FILES,
        slow=True,
    ),
    Situation(
        "another node has a copy of the key",
        "node start",
        Exit.OK,
        "same-key",
        "another node runs with a copy of this node's key ...: stop one of the two, or move its key "
        "file away so that it makes a key of its own",
        left=GOES_ON,
        test=f"{INTEGRATION}/test_network.py::test_another_node_with_our_key_is_named_once",
        by_fake=True,
    ),
    # -- two nodes, or none --------------------------------------------------------------------------------------
    Situation(
        "a second node is started in the home",
        START,
        Exit.FAILED,
        "home-taken",
        "a node (pid ...) already runs in ...: stop it with `shoal node stop`, or choose another folder "
        "with SHOAL_HOME",
        make=lambda place: place.held.enter_context(place.home.create().locked()),
        left=AS_BEFORE,
    ),
    Situation(
        "a crash has left daemon.json behind",
        "status",
        Exit.NO_DAEMON,
        "no-node",
        "no node runs in ...: start one with `shoal node start`",
        make=_stale,
        left=AS_BEFORE,
    ),
    Situation(
        "no node runs", "status", Exit.NO_DAEMON, "no-node", "no node runs in ...: start one with `shoal node start`"
    ),
    Situation(
        "the node hangs",
        "status",
        Exit.NOT_ANSWERING,
        "not-answering",
        "the node (pid ...) does not answer: it has shown no life for ... `kill -CONT ...` lets it go "
        "on. `shoal bugreport` collects ...",
        left=AS_BEFORE,
        test=f"{UNIT}/test_hung_node.py::test_each_command_says_that_it_hangs_and_what_to_do",
        by_fake=True,
    ),
    Situation(
        "the node is of another version",
        "status",
        Exit.VERSION,
        "other-version",
        "the node runs Shoal ... and this command is 99.0: restart the node with `shoal node stop` and "
        "`shoal node start`",
        left=AS_BEFORE,
        test=f"{UNIT}/test_cli.py::test_another_version_is_5",
        by_fake=True,
    ),
    # -- ports and addresses -------------------------------------------------------------------------------------
    Situation(
        "the last port is taken",
        f"{START} --port 65533".replace("--port 0 ", ""),
        Exit.FAILED,
        "port-taken",
        "no free pair of ports on 127.0.0.1 from 65533 on: choose another one, or 0 for any",
        make=_listens(65533),
        left=OWN_FILES,
    ),
    Situation(
        "the last admin port is taken",
        f"{START} --admin-port 65534".replace("--admin-port 0 ", ""),
        Exit.FAILED,
        "port-taken",
        "admin ports 65534 to 65535 are all taken: use --admin-port",
        make=_listens(65534, 65535),
        left=OWN_FILES,
        slow=True,
    ),
    Situation(
        "a port is taken and others are free",
        f"{START} --port {{port}}".replace("--port 0 ", ""),
        Exit.OK,
        "ports-in-use",
        "ports {port} and {next} are in use; listening on ... instead",
        make=Place.listen,
        left=OWN_FILES,
        goes_on=True,
    ),
    Situation(
        "the address is not of this machine",
        f"{START} --listen-host 192.0.2.1",
        Exit.FAILED,
        "cannot-listen",
        "cannot listen on 192.0.2.1, port 0: it is not an address of this machine; name one that is",
        left=OWN_FILES,
    ),
    Situation(
        "the port is for root",
        "node start --port 80",
        Exit.FAILED,
        "cannot-listen",
        "cannot listen on 127.0.0.1, port 80: only root may listen on such a port; choose one from 1024 on",
        left=OWN_FILES,
        test=f"{REFUSALS}::test_a_port_that_only_root_may_have",
    ),
    Situation(
        "the admin address is not of this machine",
        f"{START} --admin-host 192.0.2.1",
        Exit.FAILED,
        "cannot-listen",
        "--admin-host 192.0.2.1, port 0: cannot listen: Cannot assign requested address; choose an "
        "address of this machine and a port that this user may have",
        left=OWN_FILES,
        slow=True,
    ),
    # -- the network ---------------------------------------------------------------------------------------------
    Situation(
        "there is no network",
        f"{START} --bootstrap /ip4/192.0.2.7/tcp/4101",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address /ip4/192.0.2.7/tcp/4101 (/ip4/192.0.2.7/tcp/4101: network is "
        f"unreachable): {UNREACHABLE}",
        make=_namespaces("-n", LOOPBACK),
        left=OWN_FILES,
        goes_on=True,
    ),
    Situation(
        "DNS is dead: the name server does not answer",
        f"{START} --bootstrap /dns4/node.example.com/tcp/4101",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address /dns4/node.example.com/tcp/4101 (the name node.example.com "
        f"cannot be looked up: this machine's name servers have not answered in 6 s): {UNREACHABLE}",
        make=_silent_resolver,
        left=OWN_FILES,
        goes_on=True,
    ),
    Situation(
        "no bootstrap node has that name",
        f"{START} --bootstrap /dns4/nowhere.invalid/tcp/4101",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address /dns4/nowhere.invalid/tcp/4101 (the name nowhere.invalid "
        f"cannot be looked up: ...): {UNREACHABLE}",
        left=OWN_FILES,
        goes_on=True,
        slow=True,
    ),
    Situation(
        "nothing listens at the bootstrap address",
        f"{START} --bootstrap /ip4/127.0.0.1/tcp/9",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address /ip4/127.0.0.1/tcp/9 (/ip4/127.0.0.1/tcp/9: "
        "connection refused): check that the node there runs, and with `shoal status` there that this "
        "is still its address; all others are tried meanwhile, and this one again",
        left=OWN_FILES,
        goes_on=True,
        slow=True,
    ),
    Situation(
        "the bootstrap address is silent",
        f"{START} --bootstrap ...",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address ...: check that the node there runs, and with "
        "`shoal status` there that this is still its address",
        left=GOES_ON,
        test=f"{INTEGRATION}/test_peer_finder.py::test_a_black_hole_is_named_once",
        by_fake=True,
    ),
    Situation(
        "the bootstrap address is another peer's",
        f"{START} --bootstrap {{node}}/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp",
        Exit.OK,
        "bootstrap-unreachable",
        "nobody can be reached at the bootstrap address ... (cannot reach c6iDEp: ...: somebody else "
        "answers there, who has another PeerID): check that the node there runs, and with `shoal "
        "status` there that this is still its address; all others are tried meanwhile, and this one "
        "again",
        left=OWN_FILES,
        goes_on=True,
        asks=True,
    ),
    Situation(
        "the bootstrap address is none",
        "node start --bootstrap nonsense",
        Exit.USAGE,
        "bad-value",
        "--bootstrap nonsense is not a peer's address: it looks like "
        "/ip4/192.0.2.7/tcp/4101/p2p/12D3Koo..., and `shoal status` on that peer prints it",
        slow=True,
    ),
    Situation(
        "the clock is off by an hour",
        "netcheck",
        Exit.NETWORK_TROUBLE,
        "NET-CLOCK-OFF",
        "This machine's clock is 3600.0 s ahead of the others' (3 peers). ... set the clock, best by NTP",
        left=AS_BEFORE,
        test=f"{UNIT}/test_cli.py::test_a_clock_that_is_off_by_an_hour",
        by_fake=True,
    ),
    # -- links ---------------------------------------------------------------------------------------------------
    Situation(
        "what is given is no link",
        "run join nonsense --yes",
        Exit.USAGE,
        "not-a-link",
        "'nonsense' names no run: give its link (one word, as `shoal run link` prints it), or its id "
        "(64 hex characters, or the first 8 or more)",
    ),
    Situation(
        "the link is cut off",
        f"run join {LINK[:-5]} --yes",
        Exit.USAGE,
        "link-damaged",
        "the link is cut off: these are ... of its ... characters; copy it whole",
    ),
    Situation(
        "a letter of the link was changed",
        f"run join {CHANGED} --yes",
        Exit.USAGE,
        "link-damaged",
        "a letter of the link was changed: copy it again, rather than type it",
        slow=True,
    ),
    Situation(
        "the link is of an older Shoal",
        "run join shoal:abc@x --yes",
        Exit.USAGE,
        "other-protocol",
        "the link is of an older Shoal, as it begins with shoal:: update Shoal on the machine that "
        "printed it, and ask for the link that `shoal run link` prints there then",
    ),
    Situation(
        "the link is of a newer Shoal",
        f"run join shoal3{LINK[6:]} --yes",
        Exit.USAGE,
        "other-protocol",
        "the link was made by a newer Shoal (it is of version 3, and this Shoal reads 2): update Shoal on this machine",
        slow=True,
    ),
    Situation(
        "nobody at the link's addresses answers",
        f"run join {LINK} --yes",
        Exit.FAILED,
        "run-nowhere",
        "the network failed: nobody has told us of the run 00010203: /ip4/127.0.0.1/tcp/9: connection "
        "refused; check that a member of it runs, or take a new link from one",
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "a run is named by its id, and nobody is connected",
        f"run join {'ab' * 32} --yes",
        Exit.FAILED,
        "alone",
        "no other peer is connected, who could know the run: give its whole link, as `shoal run link` "
        "prints it on a member",
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "a run is to be joined without a terminal",
        f"run join {LINK}",
        Exit.USAGE,
        "nobody-asked",
        "nobody is here to say yes: say --yes to join, or look first with `shoal run preview`",
    ),
    # -- runs ----------------------------------------------------------------------------------------------------
    Situation(
        "the run is unknown",
        "run show nowhere",
        Exit.FAILED,
        "unknown-run",
        "this node is in no run 'nowhere'; it is in none",
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "a run is to be left in which the node is not",
        "run leave nowhere",
        Exit.FAILED,
        "unknown-run",
        "this node is in no run 'nowhere'; it is in none",
        left=AS_BEFORE,
        asks=True,
        slow=True,
    ),
    Situation(
        "a name means several runs",
        "run show tiny",
        Exit.FAILED,
        "ambiguous-run",
        "'tiny' means several runs: abababab (tiny), cdcdcdcd (tiny); give more of the id",
        left=AS_BEFORE,
        test=f"{UNIT}/test_cli.py::test_a_name_of_several_runs",
        by_fake=True,
    ),
    Situation(
        "a peer is unknown",
        "doctor nobody",
        Exit.FAILED,
        "unknown-peer",
        "no peer 'nobody' is known here: it is a PeerID, the last characters of one in `shoal peers`, "
        "or an address like /ip4/203.0.113.7/tcp/4101",
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "public runs are asked for, and nobody is connected",
        "run discover",
        Exit.FAILED,
        "alone",
        "this node knows no other that could tell it of public runs: connect it with one first, by a "
        "run's link or by the address of any running node",
        left=AS_BEFORE,
        asks=True,
    ),
    # -- manifests -----------------------------------------------------------------------------------------------
    Situation(
        "the manifest is not there",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "unreadable",
        "cannot read the manifest ...: there is no such file; check the path",
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "the manifest is not TOML",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "manifest-wrong",
        "... is not TOML: Invalid value (at line 1, column 8); a text stands in quotes, and true and "
        "false are written in small letters",
        make=_manifest("name = = 1"),
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "the manifest has an unknown key",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "manifest-wrong",
        "..., line 3: unknown key 'rounds.min_member'; the nearest known key is 'rounds.min_members'",
        make=_manifest(TINY + "[rounds]\nmin_member = 2\n"),
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "the manifest has an unknown model",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "manifest-wrong",
        "..., line 3: 'model.name' is \"gpt\"; it must be one of llama, hf, custom, flow, router",
        make=_manifest(TINY + '[model]\nname = "gpt"\n'),
        left=AS_BEFORE,
        asks=True,
        slow=True,
    ),
    Situation(
        "the manifest is of a newer protocol",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "other-protocol",
        "the run speaks protocol 9999, and this version of Shoal 2: upgrade Shoal on this machine",
        make=_manifest(TINY + "protocol = 9999\n"),
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "the manifest is not UTF-8",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "not-text",
        "line 1 of the manifest ... is no UTF-8 text, because of a byte 0xff: save it as UTF-8, for "
        "example with `iconv -f latin1 -t utf-8`",
        make=_manifest(b'name = "\xff"\n'),
        left=AS_BEFORE,
        asks=True,
        slow=True,
    ),
    Situation(
        "the model does not fit into this machine",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "no-room",
        "... large for this machine: ... parameters ... What would fit: ...",
        make=_manifest(TINY + "[model]\ndim = 65536\nlayers = 100\nheads = 64\nkv_heads = 64\nhidden = 262144\n"),
        left=AS_BEFORE,
        asks=True,
    ),
    # -- data, models, devices -----------------------------------------------------------------------------------
    Situation(
        "the run's text is not named",
        "run create {folder}/run.toml",
        Exit.FAILED,
        "data-missing",
        "the run is about text of your own: start this node with --data and that text",
        make=_manifest(TINY + '[data]\nname = "files"\n'),
        left=AS_BEFORE,
        asks=True,
    ),
    Situation(
        "the text is not there",
        "up --data {folder}/nowhere",
        Exit.USAGE,
        "unreadable",
        "--data ... does not exist",
        left=AS_BEFORE,
    ),
    Situation(
        "the tokenizer is not there",
        "generate {folder}/checkpoints/round-00000004 x",
        Exit.FAILED,
        "tokenizer-missing",
        "the run's tokenizer tokenizer.json is among its data, and this machine has no packed copy of "
        "these: name the file with --tokenizer",
        make=_no_tokenizer,
        left=AS_BEFORE,
    ),
    Situation(
        "the model to serve is not there",
        "serve {folder}/nowhere",
        Exit.FAILED,
        "checkpoint-missing",
        "... is not a folder: name a checkpoint's, or a model's that transformers opens",
        slow=True,
    ),
    Situation(
        "the checkpoint is not there",
        "ckpt verify {folder}",
        Exit.FAILED,
        "checkpoint-missing",
        "there is no checkpoint in ...",
        slow=True,
    ),
    Situation(
        "the checkpoint is damaged",
        "generate {folder}/checkpoints/round-00000004 x",
        Exit.FAILED,
        "checkpoint-damaged",
        "... is damaged: its bytes are not those that were written",
        make=_damaged,
        left=AS_BEFORE,
    ),
    Situation(
        "the checkpoint is another model's",
        "run create {folder}/run.toml --from {folder}/checkpoints/round-00000004",
        Exit.FAILED,
        "other-model",
        "the manifest's model and rounds.chunk_bytes must be those of the checkpoint",
        make=lambda place: (_checkpoint(place), place.write("run.toml", TINY)),
        left=AS_BEFORE,
        asks=True,
        slow=True,
    ),
    Situation(
        "the folder to export to exists",
        "ckpt export {folder}/checkpoints/round-00000004 {folder}/checkpoints",
        Exit.FAILED,
        "already-there",
        "... exists: name a new folder",
        make=_checkpoint,
        left=AS_BEFORE,
        slow=True,
    ),
    Situation(
        "the device is not here",
        f"{START} --device cuda:7",
        Exit.USAGE,
        "device-missing",
        "--device cuda:7 is not here: ...; use --device cpu or auto",
        make=_environ(CUDA_VISIBLE_DEVICES=""),
    ),
    Situation(
        "the worker cannot do its work: it cannot read the text",
        "status --exit-code",
        Exit.FAILED_RUN,
        "worker-failed",
        "the worker has failed: ... No other is started: mend that, then",
        left=GOES_ON,
        test=f"{INTEGRATION}/test_failed_worker.py::test_its_own_words_are_shown_and_no_other_is_started",
        by_fake=True,
    ),
    # -- this machine --------------------------------------------------------------------------------------------
    Situation(
        "too few files may be open",
        "node start",
        Exit.FAILED,
        "too-few-files",
        "this process may have only 20 files and connections open at a time, and a node needs 128 at "
        "least: raise the limit with `ulimit -n 1024`",
        left=OWN_FILES,
        test=f"{INTEGRATION}/test_shortages.py::test_a_node_that_may_open_too_few_files_says_so_and_does_not_start",
    ),
    Situation(
        "there is no compiler",
        "make preflight",
        2,
        "",
        "Shoal needs a C compiler",
        test=f"{UNIT}/test_preflight.py::test_no_compiler",
    ),
    Situation(
        "the disk of the output is full",
        "version",
        Exit.FAILED,
        "",
        "No space left on device",
        test=f"{REFUSALS}::test_what_is_printed_has_no_room",
    ),
    Situation(
        "nobody reads the output",
        "logs",
        Exit.FAILED,
        "",
        "",
        test=f"{REFUSALS}::test_nobody_reads_what_is_printed",
    ),
    # -- the command line ----------------------------------------------------------------------------------------
    Situation("the command is unknown", "frobnicate", Exit.USAGE, "", "Error: No such command 'frobnicate'."),
    Situation(
        "the option is unknown", "status --frobnicate", Exit.USAGE, "", "Error: No such option: --frobnicate", slow=True
    ),
    Situation(
        "the code is unknown",
        "explain nowhere",
        Exit.USAGE,
        "unknown-name",
        "there is no code 'nowhere'; the nearest are run-nowhere, data-nowhere, node-elsewhere",
        slow=True,
    ),
    Situation(
        "the folder for `shoal up` is not empty",
        "up --out {folder}/out",
        Exit.USAGE,
        "already-there",
        "--out ... is not empty: name a new folder, or empty it",
        make=lambda place: place.write("out/x", "x"),
        left=AS_BEFORE,
    ),
    Situation(
        "a report is to be written over a file",
        "bugreport {folder}/x.tar.gz --yes",
        Exit.FAILED,
        "already-there",
        "... is there already: choose another name for the report",
        make=lambda place: place.write("x.tar.gz", "x"),
        left=AS_BEFORE,
    ),
    Situation(
        "a report is to be written without a terminal",
        "bugreport {folder}/x.tar.gz",
        Exit.USAGE,
        "nobody-asked",
        "nobody is here to say yes: say --yes to write the report, or --show to look at it",
        slow=True,
    ),
    Situation(
        "the node has no log",
        "logs",
        Exit.FAILED,
        "no-log",
        "no node has logged into ... yet: start one with `shoal node start`",
        slow=True,
    ),
    # -- Ctrl-C --------------------------------------------------------------------------------------------------
    Situation(
        "Ctrl-C while `shoal up` loads torch",
        "up",
        Exit.INTERRUPTED,
        "",
        "",
        test=f"{UP}::test_ctrl_c_during_the_imports_leaves_nothing_at_all",
    ),
    Situation(
        "Ctrl-C while `shoal up` trains",
        "up",
        Exit.INTERRUPTED,
        "",
        "The report: ... Logs, metrics and states: ...",
        left=REPORT,
        test=f"{UP}::test_ctrl_c_leaves_nothing_behind",
        by_fake=True,
    ),
    Situation(
        "Ctrl-C while a run is joined",
        "run join",
        Exit.INTERRUPTED,
        "",
        "",
        left=AS_BEFORE,
        test=f"{INTEGRATION}/test_bad_situations.py::test_ctrl_c_while_a_run_is_joined",
    ),
)
BY_NAME: Mapping[str, Situation] = {each.what: each for each in SITUATIONS}


def shown(what: str, exit: int, said: str, left: Left | None = None) -> None:
    """Assert that a command has ended and spoken as the row says, and left that; for the tests that rows name."""
    shown_by_row(BY_NAME[what], exit, said, left)


def shown_by_row(row: Situation, exit: int, said: str, left: Left | None) -> None:
    """The same, of a row in which {port} and the like are filled in."""
    assert exit == row.exit, said
    assert "Traceback" not in said
    if row.says:
        pieces = (re.escape(each.strip()) for each in row.says.split("..."))
        assert re.search(".*".join(pieces), said, re.DOTALL), said
    else:
        assert said.strip() == ""
    if row.goes_on or row.left == GOES_ON or row.exit == Exit.NETWORK_TROUBLE:  # said in a log or a table
        assert re.search(rf"(?<![\w-]){re.escape(row.code)}(?![\w-])", said), said
    else:
        assert split_code(said.strip())[1] == row.code
    if left is not None:
        _check_left(row, left)


def _check_left(row: Situation, left: Left) -> None:
    assert not left.changed, "it was changed or removed"
    if row.left == REPORT:
        assert {"report.html", "logs"} <= left.fresh
    elif row.left == OWN_FILES:
        assert left.fresh <= (OWN | WHILE_IT_RAN if row.goes_on else OWN)
    else:
        assert not left.fresh, row.left


HEAD = """# Bad situations

What a command says, with which exit status it ends, and what it leaves behind, when something is wrong. Each row is a
test, most of the real command in that very situation; where a test has a fake of the node, of the other peers or of
what fails, the row says so. The codes are explained in [errors.md](errors.md); where there is
none, the sentence says all. Where the node goes on, the sentence is a warning in its log, and it runs until it is told
to end.

This page is printed from the table in [tests/bad_situations.py](../tests/bad_situations.py), by
`python -m tests.bad_situations`; a test compares them.

| situation | command | it says | code | status | left behind | shown by |
|---|---|---|---|---|---|---|
"""


def document() -> str:
    """The text of docs/bad-situations.md."""
    return HEAD + "".join(map(_line, SITUATIONS))


def _line(row: Situation) -> str:
    code = f"`{row.code}`" if row.code else ""
    status = "-" if row.goes_on or row.left == GOES_ON else str(int(row.exit))
    left = GOES_ON if row.goes_on else row.left
    place = Place(Path("."))
    command = place.fill(row.command.replace("{folder}/", ""))
    words = command if command.startswith("make") else f"shoal {_short(command)}"
    says, shown_by = place.fill(row.says) or "nothing", "a fake" if row.by_fake else "the command"
    return f"| {row.what} | `{words}` | {says} | {code} | {status} | {left} | {shown_by} |\n"


def _short(command: str) -> str:
    command = command.replace(START.partition(" --port")[0], "node start")
    for words in ("--port 0", "--admin-port 0", "--no-mdns", "--no-port-mapping", "--listen-host 127.0.0.1"):
        command = command.replace(f" {words}", "")
    return " ".join(word if len(word) < 60 else f"{word[:12]}..." for word in command.split())


if __name__ == "__main__":
    print(document(), end="")
