"""What `shoal up` passes on to peers that train adapters: the model's weights, and the manifest's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings, UpOptions, UsageError
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up import job, peers
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import Plan, chosen_manifest, make_plan, to_toml
from shoal.node.client.up.processes import WEIGHTS, Children
from tests.hf_kit import CONFIG, base_folder, skip_without
from tests.integration.test_up_hf import MANIFEST
from tests.run_kit import first_weights
from tests.unit.models.test_tokens import SENTENCES, tokenizer

pytestmark = skip_without("transformers", "peft")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    base, data, out = base_folder(tmp_path / "base"), tmp_path / "data", tmp_path / "out"
    for folder in (data, out):
        folder.mkdir()
    tokenizer(data)
    (data / "text.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "manifest.toml").write_text(MANIFEST.format(config=CONFIG))
    files = {"manifest": tmp_path / "manifest.toml", "data": (data,), "weights": (base,)}
    options = UpOptions(peers=2, rounds=2, kill_at=None, join_at=None, **files)  # type: ignore[arg-type]
    digest = job.corpus("", "", str(data))["digest"]
    return make_plan(options, out, chosen_manifest(options, digest))


def test_a_state_of_adapters_is_measured_on_tokens(plan: Plan, tmp_path: Path) -> None:
    whole, _ = first_weights(plan.manifest, plan.weights, Home(tmp_path / "home").create())
    for manifest in (plan.manifest, whole):
        plan.manifest_file.write_text(to_toml(manifest))
        flags = [f"{WEIGHTS}{folder}" for folder in plan.weights]
        what = [str(tmp_path / "result.json"), "validate", str(plan.manifest_file), job.INITIAL, "cpu"]
        assert job.do([*flags, *what, *map(str, plan.data)]) == 0
        answer = json.loads((tmp_path / "result.json").read_text())
        assert answer["parameters"] == 2 * 16 * ((16 + 16) + (16 + 8) + (16 + 32))  # layers, rank, three targets
        assert 5 < answer["loss"] < 6, "about ln 256"
        assert job.do([*what, *map(str, plan.data)]) == 1, "without the weights nothing can be measured"


def test_each_peer_is_given_the_weights(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[NodeSettings] = []

    def argv(settings: NodeSettings) -> list[str]:
        started.append(settings)
        return ["true"]

    monkeypatch.setattr(peers, "foreground_argv", argv)
    with Children(grace=0.0) as children:
        LocalPeer("peer-1", plan.out).start(children, plan, None)
    assert started[0].trainer.folders == plan.weights
    argv_of_node = foreground_argv(started[0])
    assert argv_of_node[argv_of_node.index("--weights") + 1] == str(plan.weights[0])


def test_weights_are_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere does not exist"):
        UpOptions(weights=(tmp_path / "nowhere",))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        UpOptions(weights=(tmp_path / "file",))
