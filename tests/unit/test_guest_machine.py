"""What is seen of a machine, by fakes of the system's files: use, power, and processes on a GPU."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from shoal.node.daemon.guest import machine
from shoal.node.daemon.guest.machine import (
    GPU_EVERY,
    OURS_FOR,
    GpuProcess,
    Machine,
    busy_ticks,
    gpu_processes,
    keyboard_interrupts,
    process_ticks,
    runs_on_battery,
)
from shoal.node.daemon.guest.rules import Manners, Seen

NOW = 1_800_000_000.0
OURS = 4101
TICKS = os.sysconf("SC_CLK_TCK")
IDLE, MAINS, GPU = Manners(idle=10), Manners(mains=True), Manners(gpu=True)
INTERRUPTS = """\
           CPU0       CPU1
  1:       1000         23   IO-APIC    1-edge      i8042
 12:         77          0   IO-APIC   12-edge      i8042
 16:       9999       9999   IO-APIC   16-fasteoi   ehci_hcd:usb1
"""
PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0        4101      C     98     40      -      -      -      -    python
    0        4242      C      -      -      -      -      -      -    blender
    0        1200      G      3      1      -      -      -      -    Xorg
    0        1300      G     77     20      -      -      -      -    game.x86
    1           -      -      -      -      -      -      -      -    -
"""


class Fake:
    """A machine whose files lie in a folder, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now, self.own = root, NOW, {OURS}
        self.machine = Machine(lambda: self.own, root, (str(root / "nvidia-smi"),), lambda: self.now)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def terminal(self, name: str, typed_at: float) -> None:
        os.utime(self.write(f"dev/{name}", ""), (typed_at, NOW))

    def account(self, *, all_seconds: float, ours: float, pid: int = OURS) -> None:
        """The processors' time so far, at usual priority, and that of one process of ours."""
        rest = "300 200 0 0 40 0 0 0 0 0"
        self.write("proc/stat", f"cpu  {int(all_seconds * TICKS)} {rest}\ncpu0 1 1 1 1\nintr 1\n")
        fields = f"S 1 1 1 0 -1 0 0 0 0 0 {int(ours * TICKS)} 0 0 0 20 0 1 0 0 0 0"
        self.write(f"proc/{pid}/stat", f"{pid} (sh) al (x) {fields}\n")

    def supply(self, name: str, **files: str) -> None:
        for file, text in files.items():
            self.write(f"sys/class/power_supply/{name}/{file}", f"{text}\n")

    def nvidia_smi(self, script: str) -> None:
        self.write("nvidia-smi", f"#!/bin/sh\n{script}\n").chmod(0o755)

    async def look(self, manners: Manners, after: float = 0.0) -> Seen:
        self.now += after
        return await self.machine.look(manners)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


# -- texts --------------------------------------------------------------------------------------------------


def test_the_accounts_of_processors_and_processes_are_read() -> None:
    assert busy_ticks("cpu  100 50 20 9000 30 4 6 8 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n") == 180, "neither idle nor stolen"
    assert process_ticks("7 (a) b) S 1 7 7 0 -1 4194560 10 0 0 0 11 22 33 44 20 0 1 0") == 110


def test_a_built_in_keyboard_is_told_from_the_rest() -> None:
    assert keyboard_interrupts(INTERRUPTS) == 1000 + 23 + 77 + 0
    assert keyboard_interrupts("  16:  1 2 IO-APIC ehci_hcd:usb1\n") is None


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ([], False),
        ([{"type": "Mains", "online": "1"}, {"type": "Battery", "status": "Discharging"}], False),
        ([{"type": "Mains", "online": "0"}, {"type": "Battery", "status": "Discharging"}], True),
        ([{"type": "USB", "online": "1"}, {"type": "Battery", "status": "Charging"}], False),
        ([{"type": "Battery", "status": "Full"}], False),
        ([{"type": "Battery", "status": "Unknown"}], None),
        ([{"type": "Battery", "status": "Discharging", "scope": "Device"}], False),
    ],
    ids=["desktop", "plugged", "unplugged", "usb", "full", "unknown", "mouse"],
)
def test_power_is_told_from_the_supplies(supplies: list[dict[str, str]], expected: bool | None) -> None:
    assert runs_on_battery(supplies) is expected


def test_who_computes_on_a_gpu_or_draws_much_uses_it() -> None:
    assert gpu_processes(PMON) == [
        GpuProcess(4101, "python"),
        GpuProcess(4242, "blender"),
        GpuProcess(1300, "game.x86"),
    ]
    assert gpu_processes(PMON.splitlines()[0]) == []
    assert gpu_processes("Not supported on the device(s)") is None
    assert gpu_processes("") is None


# -- looking ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_terminal_that_was_typed_into_is_use(fake: Fake) -> None:
    fake.terminal("pts/0", NOW - 700)
    fake.terminal("pts/ptmx", NOW)
    fake.terminal("tty1", NOW - 900)
    fake.terminal("ttyS0", NOW)
    seen = await fake.look(IDLE)
    assert (seen.used_at, seen.use) == (NOW - 700, "input at a keyboard or terminal")
    fake.terminal("pts/3", NOW + 5)
    assert (await fake.look(IDLE, after=6)).used_at == NOW + 5
    assert (await fake.look(Manners())).on_battery is None


@pytest.mark.asyncio
async def test_a_key_of_a_built_in_keyboard_is_use(fake: Fake) -> None:
    fake.write("proc/interrupts", INTERRUPTS)
    assert (await fake.look(IDLE)).used_at in (None, 0.0)
    assert fake.machine.unknown == {}
    fake.write("proc/interrupts", INTERRUPTS.replace(" 77 ", " 78 "))
    assert (await fake.look(IDLE, after=5)).used_at == NOW + 5
    assert (await fake.look(IDLE, after=5)).used_at == NOW + 5


@pytest.mark.asyncio
async def test_a_clock_that_is_put_back_lets_the_machine_be_idle_after_its_minutes(fake: Fake) -> None:
    fake.terminal("pts/0", NOW - 1)
    await fake.look(IDLE)
    assert (await fake.look(IDLE, after=-86_400)).used_at == NOW - 86_400
    assert (await fake.look(IDLE, after=600)).used_at == NOW - 86_400, "and not whenever it is looked"
    fake.terminal("pts/1", NOW - 86_400 + 602)
    assert (await fake.look(IDLE, after=5)).used_at == NOW - 86_400 + 602


@pytest.mark.asyncio
async def test_the_work_of_others_is_use_and_ours_is_not(fake: Fake) -> None:
    fake.account(all_seconds=1000.0, ours=900.0)
    assert (await fake.look(IDLE)).used_at is None
    assert not fake.machine.knows(IDLE)
    fake.account(all_seconds=1010.0, ours=909.0)
    assert (await fake.look(IDLE, after=5)).used_at is None, "too short a time to tell"
    fake.account(all_seconds=1020.0, ours=918.0)
    assert (await fake.look(IDLE, after=5)).used_at is None, "others took 0.2 cores"
    assert fake.machine.knows(IDLE)
    fake.account(all_seconds=1050.0, ours=928.0)
    seen = await fake.look(IDLE, after=10)
    assert (seen.used_at, seen.use) == (NOW + 20, "processes of others that take 2.0 cores")
    assert fake.machine.unknown == {}


@pytest.mark.asyncio
async def test_a_worker_that_has_ended_is_not_taken_for_somebody_else(fake: Fake) -> None:
    """Its time is ours before, and in no file of ours after."""
    fake.account(all_seconds=1000.0, ours=900.0)
    await fake.look(IDLE)
    fake.account(all_seconds=1012.0, ours=0.0, pid=OURS + 1)
    fake.own = {OURS + 1}
    assert (await fake.look(IDLE, after=12)).used_at is None
    fake.account(all_seconds=1036.0, ours=0.0, pid=OURS + 1)
    assert (await fake.look(IDLE, after=12)).used_at == NOW + 24


@pytest.mark.asyncio
async def test_a_battery_is_seen(fake: Fake) -> None:
    fake.supply("BAT0", type="Battery", status="Discharging")
    fake.supply("AC", type="Mains", online="0")
    assert (await fake.look(MAINS)).on_battery is True
    fake.supply("AC", type="Mains", online="1")
    assert (await fake.look(MAINS)).on_battery is False
    assert fake.machine.unknown == {}


@pytest.mark.asyncio
async def test_others_on_a_gpu_are_named_and_ours_and_those_of_elsewhere_are_not(fake: Fake) -> None:
    fake.nvidia_smi(f"cat <<'END'\n{PMON}END")
    for pid in (4101, 4242):
        fake.write(f"proc/{pid}/stat", "")
    assert (await fake.look(GPU)).gpu_users == ("blender (pid 4242)",), "1300 is in another container"
    fake.nvidia_smi(f"cat <<'END'\n{PMON.replace('blender', 'other')}END")
    assert (await fake.look(GPU, after=5)).gpu_users == ("blender (pid 4242)",), "it is not asked all the time"
    assert (await fake.look(GPU, after=5)).gpu_users == ("other (pid 4242)",)
    assert fake.machine.unknown == {}


@pytest.mark.asyncio
async def test_a_worker_that_has_just_ended_is_not_taken_for_another_process(fake: Fake) -> None:
    """The tool may list it for some seconds more, while the system still has its entry in /proc."""
    fake.nvidia_smi(f"cat <<'END'\n{PMON}END")
    fake.write("proc/4242/stat", "")
    fake.own = {OURS, 4242}
    assert (await fake.look(Manners())).gpu_users is None, "noted even before the owner sets the rule"
    fake.own = {OURS}
    assert (await fake.look(GPU, after=OURS_FOR - 1)).gpu_users == ()
    assert (await fake.look(GPU, after=GPU_EVERY)).gpu_users == ("blender (pid 4242)",), "by then it is another one"


@pytest.mark.asyncio
async def test_a_clock_that_is_put_back_keeps_no_process_ours(fake: Fake) -> None:
    fake.nvidia_smi(f"cat <<'END'\n{PMON}END")
    fake.write("proc/4242/stat", "")
    fake.own = {OURS, 4242}
    await fake.look(GPU)
    fake.own = {OURS}
    assert (await fake.look(GPU, after=-86_400)).gpu_users == ("blender (pid 4242)",)


@pytest.mark.asyncio
@pytest.mark.parametrize("script", ["", "exit 6", "echo Not supported on the device"])
async def test_what_cannot_be_known_is_said_and_is_no_reason(fake: Fake, script: str) -> None:
    if script:
        fake.nvidia_smi(script)
    seen = await fake.look(Manners(idle=5, mains=True, gpu=True))
    assert seen == Seen()
    assert set(fake.machine.unknown) == {"only-when-idle", "only-on-mains", "yield-gpu"}
    await fake.look(Manners())
    assert fake.machine.unknown == {}


@pytest.mark.asyncio
async def test_a_tool_that_hangs_is_not_waited_for(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GPU_ANSWERS", 0.1)
    fake.nvidia_smi("exec sleep 600")
    assert (await fake.look(GPU)).gpu_users is None
    assert "yield-gpu" in fake.machine.unknown


@pytest.mark.asyncio
async def test_a_tool_that_cannot_be_killed_holds_up_nothing_and_is_not_started_twice(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "GPU_ANSWERS", 0.5)
    monkeypatch.setattr(machine, "GPU_WAITS", 0.01)
    monkeypatch.setattr(Process, "kill", lambda process: None)
    pids = fake.root / "pids"
    fake.nvidia_smi(f"echo $$ >> {pids}; exec sleep 600")
    try:
        assert (await fake.look(GPU)).gpu_users is None
        assert not fake.machine.knows(GPU)
        assert fake.machine.unknown == {}, "it may still answer"
        async with asyncio.timeout(20):
            while not fake.machine.knows(GPU):
                assert (await fake.look(GPU)).gpu_users is None
        for _ in range(3):
            await fake.look(GPU, after=60)
        assert "yield-gpu" in fake.machine.unknown
        assert len(pids.read_text().split()) == 1
    finally:
        os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
    async with asyncio.timeout(20):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_question_under_way_ends_with_the_node(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GPU_WAITS", 0.01)
    fake.nvidia_smi(f"echo > {fake.root}/begun; exec sleep 600")
    async with asyncio.timeout(20):
        while not (fake.root / "begun").exists():
            await fake.look(GPU)
    await fake.machine.close()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.asyncio
async def test_this_very_machine_can_be_looked_at() -> None:
    this = Machine(lambda: {os.getpid()})
    seen = await this.look(Manners(idle=1, mains=True, gpu=True))
    assert ("only-on-mains" in this.unknown) == (seen.on_battery is None)
    assert ("yield-gpu" in this.unknown) == (seen.gpu_users is None)
