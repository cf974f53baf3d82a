"""A device that cannot be here is refused before anything is started; one that may be is left to the worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.node import devices
from shoal.node.options import UsageError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One without any GPU, but for the file that is returned, if it is made."""
    found = tmp_path / "nvidiactl"
    monkeypatch.setattr(devices, "GPU_FILES", (str(found),))
    monkeypatch.setattr(devices, "_has_card", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    return found


def test_what_cannot_be_here_is_said_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices.check_is_here(["cpu", "auto"])
    for device, said in (("cuda", "neither a GPU"), ("cuda:1", "neither a GPU"), ("mps", "only Apple's")):
        with pytest.raises(UsageError, match=f"--device {device} is not here: .*{said}.* use .*cpu or auto"):
            devices.check_is_here(["cpu", device])
    machine.touch()
    monkeypatch.setattr(devices, "_is_built_without", lambda: False)
    devices.check_is_here(["cuda"])
    monkeypatch.setattr(devices, "_is_built_without", lambda: True)
    with pytest.raises(UsageError, match="was built without it"):
        devices.check_is_here(["cuda"])


def test_a_card_whose_driver_is_not_loaded_yet_may_be_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_has_card", lambda: True)
    monkeypatch.setattr(devices, "_is_built_without", lambda: False)
    devices.check_is_here(["cuda"])


def test_only_some_devices_have_memory_of_their_own(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [devices.has_gpu(each) for each in ("cuda:1", "cpu", "mps", "auto")] == [True, False, False, False]
    machine.touch()
    monkeypatch.setattr(devices, "_is_built_without", lambda: False)
    assert devices.has_gpu("auto")
    monkeypatch.setattr(devices, "_is_built_without", lambda: True)
    assert not devices.has_gpu("auto"), "the worker will train on the CPU, in the machine's memory"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", False),
        ("cuda = None\nhip = '6.2'\n", False),
        ("__version__ = '3'\n", False),
    ],
)
def test_torch_says_what_it_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    (tmp_path / "version.py").write_text(text)
    monkeypatch.setattr(devices, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "__init__.py")}))
    assert devices._is_built_without() == expected


def test_torch_here_is_what_it_says() -> None:
    import torch

    built_for_none = torch.version.cuda is None and torch.version.hip is None
    assert devices._is_built_without() == built_for_none
