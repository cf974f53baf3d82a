"""The command line: fast, in plain sentences, with exit codes that mean something."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from shoal.node.api import client, present
from shoal.node.api.errors import find_run
from shoal.node.base.exits import HELP, Exit
from shoal.node.base.home import KEPT, DaemonInfo, Home, find_home
from shoal.node.base.kept import KeptVote
from shoal.node.base.options import NodeSettings, UpOptions, UsageError
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client import launch, waiting
from shoal.node.client.cli import completion, main
from shoal.node.client.cli.app import app
from shoal.node.daemon.web.server import serve_api
from shoal.protocol.net.system.version import shoal_version
from tests.bad_situations import Left, contents, shown
from tests.fake_service import ADDRESS, ENTERED, EVIL, LINK, MANIFEST, PEER, RUN, FakeService
from tests.run_kit import id_of

HEAVY = {"torch", "libp2p", "pydantic", "aiohttp", "numpy", "rich", "cryptography", "trio"}
FAKE_DAEMON = Path(__file__).parents[1] / "fake_daemon.py"

Shoal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Run the command in this process: exit code, stdout, stderr."""

    monkeypatch.setattr(waiting, "PRINTED_EVERY", 3600.0)  # what is printed must not depend on how busy the machine is

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return int(code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def node() -> Iterator[FakeService]:
    """A fake node that answers at this test's home, from a thread of its own."""
    home, service, ready = find_home().create(), FakeService(), threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with serve_api(service, home.token(), "127.0.0.1", 0) as (host, port):
            home.write_daemon(DaemonInfo(os.getpid(), host, port, PEER))
            ready.set()
            await over.wait()

    def live() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    with home.locked():
        thread = threading.Thread(target=live)
        thread.start()
        assert ready.wait(10)
        yield service
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


def test_the_command_line_imports_nothing_heavy() -> None:
    modules = ("client.cli.app", "client.launch", "api.client", "api.present", "api.service")
    script = f"import {', '.join(f'shoal.node.{each}' for each in modules)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & set(loaded.split())


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        ("--help", HEAVY | {"shoal.protocol.messages", "shoal.node.base.textfile", "socket", "json"}),
        ("status", (HEAVY - {"pydantic"}) | {"shoal.protocol.messages"}),  # typer needs it to run a command
        ("doctor somebody", (HEAVY - {"pydantic"}) | {"shoal.protocol.messages"}),
    ],
)
def test_a_command_loads_only_what_it_needs(words: str, spared: set[str], tmp_path: Path) -> None:
    loaded = loaded_by(words.split(), {"SHOAL_HOME": str(tmp_path)})
    assert {"typer", "shoal.node.client.cli.app"} <= loaded
    assert not spared & loaded


def test_the_tab_key_loads_nothing_heavy(tmp_path: Path) -> None:
    asked = {"_SHOAL_COMPLETE": "complete_bash", "COMP_WORDS": "shoal run leave ", "COMP_CWORD": "3"}
    loaded = loaded_by([], asked | {"SHOAL_HOME": str(tmp_path)})
    assert "shoal.node.api.client" in loaded
    assert not (HEAVY | {"shoal.protocol.messages"}) & loaded


def loaded_by(words: list[str], environ: dict[str, str]) -> set[str]:
    """The modules that a command loads in a process of its own."""
    command = [sys.executable, "-X", "importtime", "-m", "shoal.node", *words]
    said = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ).stderr
    return {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}


def test_help_is_fast() -> None:
    """Beside what a start of Python with typer takes on this machine; torch or libp2p would cost many times that."""

    def cpu_seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    bare, help = math.inf, math.inf
    for _ in range(3):
        bare = min(bare, cpu_seconds("-c", "import typer"))
        help = min(help, cpu_seconds("-m", "shoal.node", "--help"))
    print(f"CPU seconds: {bare:.3f} for typer, {help:.3f} for our help")
    assert help < 3 * bare


def test_help_explains_the_exit_codes(shoal: Shoal) -> None:
    code, out, _ = shoal("--help")
    assert code == Exit.OK
    assert set(HELP) == set(Exit)
    words = " ".join(out.split())
    assert all(f" {code} {text}" in words for code, text in HELP.items())


def test_the_version(shoal: Shoal) -> None:
    assert shoal("--version") == shoal("version") == (Exit.OK, f"shoal {shoal_version()}\n", "")


@pytest.mark.parametrize("command", [[], ["node", "start"], ["serve"]])
def test_help_is_as_wide_as_the_terminal(shoal: Shoal, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    for columns in (80, 110):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = shoal(*command, "--help")
        assert columns - 20 < max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("command", [[], ["node"], ["run"], ["ckpt"], ["config"], ["experts"]])
def test_help_cuts_no_line_about_a_command(shoal: Shoal, command: list[str]) -> None:
    usage, _, commands = shoal(*command, "--help")[1].partition("\nCommands:\n")
    assert usage
    assert commands
    assert "..." not in commands


def flags() -> Iterator[tuple[str, str, Any]]:
    """(command, flag, its variable) of the whole command tree."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, str, Any]]:
        for word, each in getattr(command, "commands", {}).items():
            yield from walk(each, f"{name} {word}")
        for each in command.params:
            is_of_all = each.name == "version" or each.name.endswith("_completion")
            if each.param_type_name == "option" and not is_of_all:
                yield name, each.opts[0], each.envvar

    yield from walk(typer.main.get_command(app), "shoal")


def test_every_flag_of_every_command_has_a_variable() -> None:
    found = list(flags())
    seen = {command for command, *_ in found}
    assert {"shoal up", "shoal node start", "shoal run create", "shoal status", "shoal logs"} <= seen
    assert [each for each in found if not str(each[2]).startswith("SHOAL_")] == []


def test_a_variable_means_one_flag_only() -> None:
    meaning: dict[str, str] = {}
    for _, flag, variable in flags():
        assert meaning.setdefault(variable, flag) == flag


@pytest.mark.parametrize("command", [["frobnicate"], ["node", "start", "--port", "x"], ["run", "join"], ["--nope"]])
def test_a_wrong_command_line_is_2(shoal: Shoal, command: list[str]) -> None:
    code, out, err = shoal(*command)
    assert (code, out) == (Exit.USAGE, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["netcheck"],
        ["peers", "--json"],
        ["run", "ls"],
        ["run", "show", RUN],
        ["run", "leave", RUN],
        ["node", "stop"],
    ],
)
def test_without_a_node_it_is_3_and_says_what_to_do(shoal: Shoal, command: list[str]) -> None:
    code, out, err = shoal(*command)
    assert (code, out) == (Exit.NO_DAEMON, "")
    assert err.startswith(f"shoal: no node runs in {find_home().root}")
    assert err.count("\n") == 1


def test_reads_as_json(shoal: Shoal, node: FakeService) -> None:
    def read(*arguments: str) -> object:
        code, out, err = shoal(*arguments, "--json")
        assert (code, err) == (Exit.OK, "")
        return json.loads(out)

    assert read("status") == node.status()
    assert read("peers") == node.peers()
    assert read("run", "ls") == node.status()["runs"]
    assert read("run", "show", RUN[:8]) == node.run_details(RUN)
    assert read("version") == {"version": node.status()["version"]}


def test_reads_for_people(shoal: Shoal, node: FakeService) -> None:
    _, out, _ = shoal("status")
    assert out.startswith("state    CONNECTED, 1 peer\n")
    assert f"stdlib ({RUN[:8]}): round 3, 4 members, training\n" in out
    assert "limits   20 Mbit/s up, 20 GB a day, 19.5 GB used today\n" in out
    assert "more than 95% of it have?[2J passed (volume-nearly-used-up)" in out
    node.paused = "paused: the volume is used up; this node goes on tomorrow"
    assert "Paused: the volume is used up; this node goes on tomorrow." in shoal("status")[1]
    assert shoal("status", "--exit-code")[0] == Exit.OK
    node.paused = None
    _, out, _ = shoal("run", "show", "stdlib")
    assert "model: dim=128, tied=yes" in out
    assert re.search(r"^1 +7 +4 +3 +0\.25 +4\.0 KiB +efefefef$", out, flags=re.MULTILINE), (
        "round, entry of the log, ..."
    )
    _, out, _ = shoal("peers")
    assert "evil?[2Jpeer" in out
    assert "\x1b" not in out


def test_a_manifest_is_shown_without_what_it_does_not_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    method: Any = {"name": "diloco", "strides": None, "outer_momentum": 0.0, "special": "", "also": []}
    details: Any = {"manifest": {"seed": 0, "method": method, "trust": {"stewards": []}}}
    present.show_run(details)
    assert capsys.readouterr().out.endswith("\nmethod: name=diloco, outer_momentum=0.0\n")
    monkeypatch.setattr(present, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    present.show_run(details)
    assert capsys.readouterr().out.endswith("\nmethod: name=diloco,\n  outer_momentum=0.0\n")


def test_status_says_how_fast_our_line_is_as_far_as_it_was_measured(shoal: Shoal, node: FakeService) -> None:
    _, out, _ = shoal("status")
    [line] = [line.split() for line in out.splitlines() if line.startswith("line")]
    assert line == ["line", "10", "Mbit/s", "up"]


def test_a_family_says_how_many_of_its_experts_are_finished(shoal: Shoal, node: FakeService) -> None:
    node.news = {"experts": {"parts": 3, "finished": 2, "trains": None}}
    assert "training, 2 of 3 experts finished" in shoal("status")[1]


def test_a_validation_loss_is_shown_with_its_round_once_there_is_one(shoal: Shoal, node: FakeService) -> None:
    assert ", validation loss 1.5000 after round 2, " in shoal("status")[1]
    node.news = {"validation_loss": None, "validation_round": None}
    assert "validation loss" not in shoal("status")[1]


def test_a_terminal_gets_the_same_in_a_table(shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(present, "is_terminal", lambda: True)
    for command in (["status"], ["peers"], ["run", "show", "stdlib"]):
        _, out, _ = shoal(*command)
        monkeypatch.setattr(present, "is_terminal", lambda: False)
        _, plain, _ = shoal(*command)
        monkeypatch.setattr(present, "is_terminal", lambda: True)
        assert re.sub("#login=.*", "", out).split() == plain.split()


def test_only_a_terminal_gets_the_link_that_logs_in(
    shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for told in (True, False):
        monkeypatch.setattr(present, "is_terminal", lambda told=told: told)
        out = "".join(shoal("status")[1].split())  # a long line may be broken
        assert "http://127.0.0.1:" in out
        assert ("/#login=" in out) is told
        assert find_home().token() not in out
    monkeypatch.setattr(present, "is_terminal", lambda: True)
    assert "#login=" not in "".join(shoal("status", "--json")[1].split())


def test_netcheck_says_what_is_in_the_way_and_ends_with_its_code(shoal: Shoal, node: FakeService) -> None:
    code, out, err = shoal("netcheck", "--json")
    assert (code, json.loads(out)["verdict"]["exit_code"], err) == (Exit.OK, 0, "")
    node.facts = replace(node.facts, reachability="nat", found_at=(), own=("/ip4/192.168.1.7/tcp/4101",), port=4101)
    code, out, _ = shoal("netcheck")
    assert code == Exit.HIDDEN
    assert "forward TCP 4101 and 4102 to this machine (192.168.1.7)" in out
    assert "bad   NET-RELAY-NONE" in out


def test_netcheck_waits_for_what_is_not_known_yet_and_says_so(shoal: Shoal, node: FakeService) -> None:
    known = node.facts
    node.facts_before = [replace(known, pending=("relays",))] * 2
    code, out, err = shoal("netcheck")
    assert (code, err) == (Exit.OK, "finding out: relays\n")
    assert "Not known yet" not in out
    node.facts = replace(known, pending=("relays",))
    code, out, _ = shoal("netcheck", "--limit", "0")
    assert "Not known yet: relays." in out


def test_a_lonely_node_says_so(shoal: Shoal, node: FakeService) -> None:
    node.state = "SOLO"
    code, out, _ = shoal("status")
    assert code == Exit.OK
    assert out.startswith(
        "state    SOLO. This node is alone: no other peer is reachable. It looks for the others by itself"
    )
    assert "--bootstrap" not in out, "it is in a run"
    assert shoal("status", "--exit-code")[0] == Exit.ALONE
    node.state = "SPLIT"
    assert shoal("status", "--exit-code", "--json")[0] == Exit.SPLIT
    node.state = "IN-ROUND"
    assert shoal("status", "--exit-code")[0] == Exit.OK
    node.news = {"failure": "the disk is full"}
    assert shoal("status", "--exit-code")[0] == Exit.FAILED_RUN


def test_what_keeps_a_node_from_the_others_is_said_instead_of_advice(shoal: Shoal, node: FakeService) -> None:
    node.state, node.obstacle = "SOLO", "rejoining: nobody has answered yet, tried 3 addresses"
    _, out, _ = shoal("status")
    assert out.startswith("state    SOLO. Rejoining: nobody has answered yet, tried 3 addresses\n")
    assert "--bootstrap" not in out


def test_the_first_to_be_back_is_well_and_not_told_to_look_for_others(shoal: Shoal, node: FakeService) -> None:
    node.state, node.news = "SOLO", {"is_resting": True}
    code, out, _ = shoal("status", "--exit-code")
    assert code == Exit.OK
    assert out.startswith("state    SOLO. Keeps stdlib after round 3 until others are back.\n")
    assert "--bootstrap" not in out


def test_who_is_alone_in_a_run_is_told_what_to_send_to_others(shoal: Shoal, node: FakeService) -> None:
    invitation = f"Send this to whoever is to join:\nshoal run join {LINK}\n"
    node.state, node.news = "SOLO", {"members": 1, "link": LINK, "left": []}
    _, out, _ = shoal("status")
    assert out.startswith("state    SOLO. This node is alone.\n")
    assert out.endswith(f"\n  Nobody else is in stdlib. {invitation}")
    assert "--bootstrap" not in out
    node.state, node.news["left"] = "CONNECTED", ["12D3KooWgone7nBFdh", "12D3KooWnu5\x1b[J"]
    said = (
        "\n  Nobody else is in stdlib: 7nBFdh, nu5?[J have left. Each is back by itself once its node runs again, "
        f"unless it has left for good. Somebody new joins by:\nshoal run join {LINK}\n"
    )
    assert shoal("status")[1].endswith(said)
    assert shoal("run", "ls")[1].endswith(said)
    node.obstacle = "rejoining: nobody has answered yet"
    assert shoal("status")[1].endswith(said), "whatever else it says"


def test_public_runs_are_listed_with_the_commands_that_join_them(shoal: Shoal, node: FakeService) -> None:
    _, out, _ = shoal("run", "discover")
    assert out.splitlines()[1].endswith(f"shoal run join {LINK}")
    assert "open?[2J" in out


def test_device_and_memory_are_shown(shoal: Shoal, node: FakeService) -> None:
    node.news = {"device": "cuda:0 (NVIDIA H200)", "device_memory": 3 << 30, "worker_memory": 700 << 20}
    node.news |= {"micro_batch": 16, "model_flops_utilization": 0.412}
    _, out, _ = shoal("status")
    assert "64.0 MiB of memory" in out
    device = "on cuda:0 (NVIDIA H200), 3.0 GiB of its memory, 700.0 MiB of main memory"
    assert f"  {device}, micro-batch 16, trains 88% of the time, MFU 41%\n" in out


def test_runs_are_created_joined_and_left(shoal: Shoal, node: FakeService, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("name = 'a'")
    code, out, _ = shoal("run", "create", str(tmp_path / "run.toml"), "--no-train")
    assert code == Exit.OK
    assert out == f"created run stdlib; on another machine:\n\nshoal run join {LINK}\n"
    assert shoal("run", "join", "ABCDEF01", "--yes")[0] == Exit.OK
    assert shoal("run", "leave", "stdlib")[0] == Exit.OK
    joined = [("preview", "ABCDEF01"), ("join", id_of(MANIFEST, EVIL).hex(), True)]
    assert node.calls == [("create", "name = 'a'", False), *joined, ("leave", RUN)]


def test_a_run_goes_on_from_a_checkpoint(
    shoal: Shoal, node: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the node is elsewhere: it is told the whole path
    Path("run.toml").write_text("name = 'a'")
    assert shoal("run", "create", "run.toml", "--from", "round-00000004")[0] == Exit.OK
    assert shoal("run", "join", RUN, "--yes", "--from", "round-00000004")[0] == Exit.OK
    path = str(tmp_path / "round-00000004")
    assert node.calls == [("create", "name = 'a'", True, path), ("preview", RUN), ("join", RUN, True, path)]
    assert shoal("run", "create", "run.toml", "--from", "large", "--from", "small")[0] == Exit.OK
    assert node.calls[-1] == ("create", "name = 'a'", True, str(tmp_path / "large"), str(tmp_path / "small"))


@pytest.mark.parametrize("flag", ["--peers=3", "--kill-at=2", "--join-at=2", "--manifest=m.toml", "--seed=1"])
def test_what_an_earlier_play_has_settled_is_not_chosen_again(shoal: Shoal, tmp_path: Path, flag: str) -> None:
    code, _, err = shoal("up", "--resume", str(tmp_path), flag)
    assert code == Exit.USAGE
    assert f"{flag.partition('=')[0]} with --resume" in err


def test_what_was_done_to_a_run_as_json(shoal: Shoal, node: FakeService, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("name = 'a'")
    for command in (["create", str(tmp_path / "run.toml")], ["link", "stdlib"], ["join", LINK, "--yes"]):
        code, out, err = shoal("run", *command, "--json")
        assert (code, err) == (Exit.OK, "")
        assert json.loads(out) == ENTERED
    assert json.loads(shoal("run", "leave", RUN, "--json")[1]) == {"run": RUN, "name": "stdlib"}


@pytest.mark.parametrize(
    ("news", "said"),
    [
        ({"waiting_for": "round 4 waits for nu5qcu, jvSQQz"}, "\n  round 4 waits for nu5qcu, jvSQQz\n"),
        ({"warnings": [{"code": "slow", "words": "it is slow"}]}, "\n  it is slow (slow)\n"),
        ({"phase": "failed", "failure": "the disk is full"}, "\n  failed on this node: the disk is full\n"),
    ],
)
def test_what_holds_a_run_up_is_said_in_a_sentence(
    shoal: Shoal, node: FakeService, news: dict[str, str], said: str
) -> None:
    node.news = news
    assert shoal("status")[1].endswith(said)
    assert shoal("run", "ls")[1].endswith(said)


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        ("bad00000", Exit.FAILED, "another peer is at fault: peer mallory"),
        ("dead0000", Exit.FAILED, "the network failed: no peer answered"),
        ("b09b09b0", Exit.FAILED, "its log has the details"),
        ("short", Exit.USAGE, "64 hex characters"),
        (LINK[:40], Exit.USAGE, "the link is cut off: these are 40 of its"),
        (LINK.replace("shoal2", "shoal3"), Exit.USAGE, "made by a newer Shoal"),
        (f"shoal:{RUN}?p=/ip4/192.0.2.7/tcp/4101", Exit.USAGE, "of an older Shoal"),
    ],
)
def test_an_error_is_one_sentence_with_the_culprit(
    shoal: Shoal, node: FakeService, run: str, code: Exit, said: str
) -> None:
    got, out, err = shoal("run", "join", run, "--yes")
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"\xff", b"#" * 70_000, b"typo = 1"])
def test_a_bad_manifest_file_is_1(shoal: Shoal, node: FakeService, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    code, _, err = shoal("run", "create", str(path))
    assert code == Exit.FAILED
    assert "manifest" in err
    assert node.calls == []


def test_an_unknown_run_is_1_and_lists_the_known(shoal: Shoal, node: FakeService) -> None:
    code, _, err = shoal("run", "show", "nothing")
    assert code == Exit.FAILED
    assert f"{RUN[:8]} (stdlib)" in err


def test_another_version_is_5(shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "shoal_version", lambda: "99.0")
    before = contents(find_home().root)
    code, _, err = shoal("status")
    shown("the node is of another version", code, err, Left.in_folder(find_home().root, before))
    assert "99.0" in err


def test_a_name_of_several_runs(shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"ab" * 32: "tiny", "cd" * 32: "tiny"}
    monkeypatch.setattr(node, "run_details", lambda run: find_run(run, both))
    before = contents(find_home().root)
    code, _, err = shoal("run", "show", "tiny")
    shown("a name means several runs", code, err, Left.in_folder(find_home().root, before))
    assert "abababab (tiny), cdcdcdcd (tiny)" in err


def test_a_clock_that_is_off_by_an_hour(shoal: Shoal, node: FakeService) -> None:
    node.facts = replace(node.facts, clocks=(3600.0, 3600.5, 3599.0))
    before = contents(find_home().root)
    code, out, _ = shoal("netcheck")
    shown("the clock is off by an hour", code, out, Left.in_folder(find_home().root, before))
    assert "3600.0 s ahead of the others'" in out


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"]
)
def test_something_else_on_the_port_is_said_so(shoal: Shoal, answer: bytes) -> None:
    home = find_home().create()
    with home.locked(), socket.create_server(("127.0.0.1", 0)) as listener:

        def live() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        home.write_daemon(DaemonInfo(os.getpid(), "127.0.0.1", listener.getsockname()[1], PEER))
        thread = threading.Thread(target=live)
        thread.start()
        code, out, err = shoal("status")
        thread.join(10)
    assert (code, out) == (Exit.FAILED, "")
    assert "does not answer properly" in err
    assert err.count("\n") == 1


def test_a_node_that_is_still_starting_is_3(shoal: Shoal) -> None:
    with find_home().create().locked():
        code, _, err = shoal("status")
    assert code == Exit.NO_DAEMON
    assert "starting" in err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["shoal", "status"])
    monkeypatch.setattr(client.Client, "status", lambda self: 1 / 0)
    monkeypatch.setattr(client.Client, "__init__", lambda self, *_: None)
    with pytest.raises(ZeroDivisionError):
        main()


def test_flags_beat_variables_and_variables_beat_defaults(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NodeSettings] = []
    monkeypatch.setattr(launch, "run_here", lambda settings, chosen: seen.append(settings))
    monkeypatch.setenv("SHOAL_PORT", "5001")
    monkeypatch.setenv("SHOAL_ADMIN_PORT", "5002")
    monkeypatch.setenv("SHOAL_BOOTSTRAP", f"{ADDRESS} {ADDRESS}")
    monkeypatch.setenv("SHOAL_FOREGROUND", "1")
    assert shoal("node", "start", "--port", "6001")[0] == Exit.OK
    (settings,) = seen
    assert (settings.port, settings.admin_port, settings.admin_host) == (6001, 5002, "127.0.0.1")
    assert settings.bootstrap == (ADDRESS, ADDRESS)
    assert settings.home == find_home().root


def test_the_childs_command_line_says_the_same(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NodeSettings] = []
    monkeypatch.setattr(launch, "run_here", lambda settings, chosen: seen.append(settings))
    monkeypatch.delenv("SHOAL_NO_MDNS")
    monkeypatch.delenv("SHOAL_NO_PORT_MAPPING")
    data = (Path("/"), FAKE_DAEMON)
    runs = (RUN, LINK, str(FAKE_DAEMON))
    node = (find_home().root, 1234, "127.0.0.1", "::1", 0, (ADDRESS,), 3, "cuda:1")
    asked = NodeSettings(*node, data, FAKE_DAEMON, runs, train=False, data_limit=0.5, share_data=False)
    limited = replace(asked, max_up=2_500_001, max_down=8_000, max_per_day=20 * 10**9)
    tuned = [replace(asked, trainer=TrainerOptions(*each)) for each in ((4, False, False), (0, True, True))]
    for each in (asked, replace(asked, mdns=False), replace(asked, port_mapping=False), limited, *tuned):
        argv = launch.foreground_argv(each)
        assert shoal(*argv[argv.index("shoal.node") + 1 :])[0] == Exit.OK
        assert seen.pop() == each


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "65535"], "--port"),
        (["--admin-port", "-1"], "--admin-port"),
        (["--listen-host", "localhost"], "--listen-host localhost is no IP address"),
        (["--threads", "0"], "--threads"),
        (["--device", "gpu"], "--device gpu is no device: use auto, cpu, mps, cuda, or cuda:1"),
        (
            ["--micro-batch", "-1"],
            "--micro-batch -1: give a number of sequences, at most 65536, or 0",
        ),
        (["--data", "/nowhere/at/all"], "--data"),
        (["--data-limit", "-1"], "--data-limit"),
        (["--data-limit", "nan"], "--data-limit"),
        (["--max-up", "20"], "--max-up 20 is no rate: write it in bits, as 20Mbit, or in bytes, as 2.5MB/s"),
        (["--max-down", "1kbit"], "--max-down 1kbit is too little to take part in anything: at least 64 kbit/s"),
        (["--max-per-day", "1MB"], "--max-per-day 1MB is too little to take part in anything: at least 100 MB"),
        (["--bootstrap", "192.0.2.7:4101"], "/tcp/4101"),
        (["--create", "/nowhere.toml"], "--create"),
        (["--join", "/nowhere.toml"], "--join"),
        (["--join", "shoal2abc"], "the link is cut off"),
    ],
)
def test_settings_that_make_no_sense_are_2(shoal: Shoal, arguments: list[str], said: str) -> None:
    code, _, err = shoal("node", "start", *arguments)
    assert code == Exit.USAGE
    assert said in err
    assert not find_home().root.exists()


class Up:
    """Stands in for the local swarm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[UpOptions] = []
        stub = ModuleType("shoal.node.client.up.orchestrate")
        stub.main = self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "shoal.node.client.up.orchestrate", stub)

    def __call__(self, options: UpOptions) -> int:
        self.seen.append(options)
        return 1


def test_up_by_default(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    up = Up(monkeypatch)
    assert shoal("up") == (1, "", "")
    assert up.seen == [UpOptions()]


def test_up_with_everything(shoal: Shoal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    up = Up(monkeypatch)
    manifest = tmp_path / "run.toml"
    manifest.touch()
    flags = ["--peers", "5", "--rounds", "9", "--kill-at", "none", "--join-at", "8", "--data", str(tmp_path)]
    flags += ["--data", str(manifest), "--manifest", str(manifest), "--baseline", "--out", str(tmp_path / "o")]
    shoal("up", *flags, "--seed", "3", "--json")
    data = (tmp_path, manifest)
    assert up.seen == [UpOptions(5, 9, None, 8, data, manifest, True, tmp_path / "o", 3, True)]


def test_usual_faults_that_do_not_fit_are_left_out_aloud(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    up = Up(monkeypatch)
    _, _, err = shoal("up", "--rounds", "5", "--peers", "2")
    assert (up.seen[0].kill_at, up.seen[0].join_at) == (None, None)
    assert "--kill-at 4" in err
    assert "--join-at 6" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--peers", "1"],
        ["--peers", "65"],
        ["--rounds", "0"],
        ["--kill-at", "13"],
        ["--kill-at", "0"],
        ["--kill-at", "never"],
        ["--kill-at", "-1"],
        ["--kill-at", "4", "--peers", "2"],
        ["--join-at", "12"],
        ["--join-at", "0"],
        ["--seed", "-1"],
        ["--data", "/nowhere/at/all"],
        ["--manifest", "/nowhere.toml"],
        ["--out", "/dev/null"],
    ],
)
def test_up_refuses_nonsense(shoal: Shoal, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    up = Up(monkeypatch)
    code, out, err = shoal("up", *arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert arguments[0] in err
    assert up.seen == []


def test_options_check_themselves() -> None:
    with pytest.raises(UsageError):
        UpOptions(peers=1)


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """`node start` starts a real process with a fake node; it is gone when the test ends."""
    real = launch.node_argv

    def fake_argv(flags: Sequence[str]) -> list[str]:
        argv = real(flags)
        return [sys.executable, str(FAKE_DAEMON), *argv[argv.index("shoal.node") + 1 :]]

    monkeypatch.setattr(launch, "node_argv", fake_argv)
    home = find_home()
    yield home
    if (pid := home.daemon_pid()) is not None:
        os.kill(pid, signal.SIGKILL)


def test_a_node_in_the_background_comes_and_goes(shoal: Shoal, background: Home) -> None:
    code, _, err = shoal("logs")
    assert (code, "shoal node start" in err) == (Exit.FAILED, True)
    code, out, err = shoal("node", "start", "--admin-port", "0", "--port", "4999")
    assert (code, err) == (Exit.OK, "")
    pid = background.daemon_pid()
    assert pid is not None
    assert pid != os.getpid()
    assert os.getsid(pid) == pid
    moved = "; port 4999 was taken\n"
    for part in (PEER, ADDRESS, "http://127.0.0.1:", f"pid {pid}", str(background.daemon_log), moved):
        assert part in out
    assert json.loads(shoal("status", "--json")[1])["peer"] == PEER

    code, _, err = shoal("node", "start")
    assert code == Exit.FAILED
    assert f"pid {pid}" in err

    background.daemon_log.write_text('{"time": "2026-01-02T03:04:05.678Z", "level": "info", "message": "hello"}\n')
    assert shoal("logs")[1] == "2026-01-02 03:04:05 hello\n"
    assert json.loads(shoal("logs", "--json", "-n", "1")[1])["message"] == "hello"
    assert shoal("logs", "-n", "0")[1] == ""

    kept = background.make_run_folder(RUN) / "log"
    kept.mkdir()
    KeptVote(3, ("12D3KooWabcdef",)).write(kept / KEPT)
    code, out, _ = shoal("node", "stop")
    waits = "stdlib waits until a quorum of its 3 voters is back: this node and abcdef are away"
    assert (code, out) == (Exit.OK, f"stopped the node (pid {pid}); {waits}\n")
    assert background.daemon_pid() is None
    assert shoal("node", "stop")[0] == Exit.NO_DAEMON
    assert shoal("logs")[0] == Exit.OK  # what it said last is what one wants to know then


def test_a_node_in_the_foreground_logs_elsewhere(shoal: Shoal, node: FakeService) -> None:
    find_home().daemon_log.write_text("of another life\n")
    code, out, err = shoal("logs")
    assert (code, out) == (Exit.FAILED, "")
    assert "journalctl" in err


def test_a_node_that_dies_at_start_says_why(shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODE", "fails")
    code, out, err = shoal("node", "start", "--admin-port", "0")
    assert (code, out) == (Exit.FAILED, "")
    assert err.startswith("shoal: the node did not start: the identity key is of another planet")
    assert background.daemon_pid() is None


def test_ctrl_c_while_it_starts_leaves_no_node(shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_description", interrupted)
    assert shoal("node", "start", "--admin-port", "0")[0] == Exit.INTERRUPTED
    assert background.daemon_pid() is None


def test_a_node_that_does_not_listen_gets_a_signal(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "deaf")
    monkeypatch.setattr(launch, "STOP_PATIENCE", 1.0)
    shoal("node", "start", "--admin-port", "0")
    assert background.daemon_pid() is not None
    assert shoal("node", "stop")[0] == Exit.OK
    assert background.daemon_pid() is None


def test_a_node_that_is_saving_its_runs_is_waited_for(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "slow")
    monkeypatch.setattr(launch, "STOP_PATIENCE", 0.2)
    shoal("node", "start", "--admin-port", "0")
    code, out, err = shoal("node", "stop")
    assert (code, out.startswith("stopped the node (pid ")) == (Exit.OK, True)
    assert err.count("still saving its runs") == 1
    assert background.daemon_pid() is None


def test_a_node_in_the_background_that_does_not_end_well_says_so(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "forgets")
    shoal("node", "start", "--admin-port", "0")
    code, out, err = shoal("node", "stop")
    assert (code, out, background.daemon_pid()) == (Exit.FAILED, "", None)
    assert "has ended, but the run stdlib did not end well: the disk is full (its log is" in err


def test_a_node_that_refuses_us_gets_a_signal(shoal: Shoal, background: Home) -> None:
    shoal("node", "start", "--admin-port", "0")
    (background.root / "token").unlink()  # the next one is not what the node wants to see
    assert shoal("node", "stop")[0] == Exit.OK
    assert background.daemon_pid() is None


def test_who_starts_a_running_node_with_a_setting_is_told_how_to_change_it(
    shoal: Shoal, background: Home, tmp_path: Path
) -> None:
    shoal("node", "start", "--admin-port", "0")
    (tmp_path / "my text").mkdir()
    code, _, err = shoal("node", "start", "--data", str(tmp_path / "my text"), "--no-mdns")
    assert code == Exit.FAILED
    sets = f"shoal config set no-mdns true && shoal config set data '{tmp_path / 'my text'}' && shoal restart"
    assert err.endswith(f"; to change its settings: {sets} [home-taken]\n")
    assert shoal("node", "start")[2].endswith("see `shoal status` [home-taken]\n")
    assert shoal("node", "stop")[0] == Exit.OK


def test_two_starts_at_once_give_one_node(background: Home) -> None:
    settings = NodeSettings(background.create().root, admin_port=0)
    argv = launch.foreground_argv(settings)
    pair = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    loser, deadline = None, time.monotonic() + 30
    while loser is None and time.monotonic() < deadline:
        time.sleep(0.01)
        loser = next((each for each in pair if each.poll() is not None), None)
    assert loser is not None
    assert loser.returncode == Exit.FAILED
    assert "already runs" in loser.communicate()[1]
    winner = next(each for each in pair if each is not loser)
    assert winner.poll() is None
    launch.stop(background, print)
    winner.communicate()


def test_the_timeline_of_a_round(shoal: Shoal, node: FakeService) -> None:
    code, out, _ = shoal("logs", "--round", "3", "--json")
    assert (code, json.loads(out)) == (Exit.OK, node.timeline(RUN, 3))
    code, out, _ = shoal("logs", "--round", "3", "--run", "stdlib")
    assert code == Exit.OK
    assert out.startswith("round 3 of stdlib, as self01 saw it\n")
    assert "it waited 0.600 s for slow03 (relayed)" in out
    assert "\x1b" not in out
    assert shoal("logs", "--round", "9")[::2] == (Exit.FAILED, "shoal: nothing is known of round 9 [unknown-round]\n")
    assert shoal("logs", "--round", "0")[0] == Exit.USAGE
    assert shoal("logs", "--round", "3", "--follow")[0] == shoal("logs", "--run", "stdlib")[0] == Exit.USAGE
    code, _, err = shoal("logs", "--round", "3", "--run", "other")
    assert (code, err.startswith("shoal: this node is in no run 'other'")) == (Exit.FAILED, True)
    node.not_open = [{**dict.fromkeys(("run", "name"), "cd" * 32), "name": None, "phase": "restoring", "round": 0}]
    code, _, err = shoal("logs", "--round", "3")
    assert (code, err) == (
        Exit.FAILED,
        "shoal: name the run with --run: this node is in stdlib, cdcdcdcd [ambiguous-run]\n",
    )


def test_experts_of_a_family_are_listed_and_fetched(shoal: Shoal, node: FakeService, tmp_path: Path) -> None:
    code, out, _ = shoal("experts", "stdlib")
    assert code == Exit.OK
    header, net, text = out.splitlines()
    assert header.split() == ["PART", "PEER", "STEPS", "OF", "LOSS", "PUBLISHED", "HOLDERS", "HERE"]
    assert net.split() == ["net", "finished", "40", "40", "3.2500", "40", "2", "yes"]
    assert text.split()[:5] == ["text", "ke?[2J", "8", "40", "4.5000"]
    assert json.loads(shoal("experts", "show", "stdlib", "--json")[1]) == node.experts("stdlib")
    assert shoal("experts", "elsewhere")[0] == Exit.FAILED
    code, out, _ = shoal("experts", "fetch", "stdlib", str(tmp_path / "out"))
    assert (code, node.calls[-1]) == (Exit.OK, ("experts", "stdlib", str(tmp_path / "out")))
    assert out.splitlines()[0] == f"wrote {tmp_path / 'out'}: net (40 steps)"
    assert "nothing has been published yet of text" in out


# -- shell completion ---------------------------------------------------------------------------------------


@pytest.fixture
def complete(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What bash is offered for the last of these words."""

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_SHOAL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["shoal", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        code, out, err = shoal()
        assert (code, err) == (Exit.OK, "")
        return out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "leave", ""], ["stdlib", "cdcdcdcd"]),
        (["run", "show", "std"], ["stdlib"]),
        (["run", "link", "ab"], [RUN[:8]]),
        (["run", "link", RUN[:9]], [RUN]),
        (["run", "leave", "other"], []),
        (["logs", "--round", "3", "--run", ""], ["stdlib", "cdcdcdcd"]),
        (["serve", "std"], ["stdlib"]),
        (["experts", "fetch", ""], ["cdcdcdcd"]),
        (["doctor", ""], [PEER[-6:]]),
        (["doctor", PEER[-12:-4]], [PEER[-12:]]),
        (["doctor", "12D3"], [PEER]),
    ],
)
def test_the_tab_key_offers_what_the_node_knows(
    complete: Callable[..., list[str]],
    node: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    wanted: list[str],
) -> None:
    unnamed = {"run": "cd" * 32, "name": None, "experts": {"parts": 2, "finished": 0, "trains": None}}
    node.not_open = [unnamed]
    rows = [{"peer": PEER, "run": RUN}, {"peer": PEER, "run": "cd" * 32}, {"peer": "$(reboot)", "run": RUN}]
    monkeypatch.setattr(node, "peers", lambda: rows, raising=False)
    assert complete(*words) == wanted


def test_the_tab_key_offers_nothing_without_an_answer(
    complete: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete("run", "leave", "") == []
    monkeypatch.setattr(completion, "LIMIT", 0.05)
    home = find_home().create()
    with home.locked(), socket.create_server(("127.0.0.1", 0)) as silent:
        home.write_daemon(DaemonInfo(os.getpid(), "127.0.0.1", silent.getsockname()[1], PEER))
        assert complete("run", "leave", "") == []


def test_of_things_alike_none_is_offered_by_what_they_share() -> None:
    things = [["net", "aa11", "aa11ff"], ["net", "aa22", "aa22ff"], ["text", "bb33", "bb33ff"]]
    assert completion.offered(things, "") == ["aa11", "aa22", "text"]
    assert completion.offered(things, "aa22f") == ["aa22ff"]
    assert completion.offered([["rm -rf", "x;y", "ok"]], "") == ["ok"]
