"""Training scripts of users' own as workers: the examples, each member with a daemon, as people run them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.nodes import RealNode, until
from tests.integration.script_of_methods import LAST, METHODS, REPLICAS
from tests.integration.scripts import PATIENCE, Script, all_ended, two_nodes

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[RealNode, RealNode]]:
    with two_nodes(tmp_path) as both:
        yield both


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    with all_ended() as started:
        yield started


def weights(path: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return loaded


def train_by(methods: Iterable[str], nodes: tuple[RealNode, RealNode], scripts: list[Script], folder: Path) -> None:
    """One process on each node trains in one run after the other, and ends well."""
    program = str(Path(__file__).parent / "script_of_methods.py")
    scripts += [Script(node, program, str(folder), str(place), *methods) for place, node in enumerate(nodes)]
    for script in scripts:
        script.end()


def run_both(scripts: list[Script], nodes: tuple[RealNode, RealNode], ours: list[str], theirs: list[str]) -> None:
    """The founder's script and, once it has said its link in place of LINK, the other's; both end well."""
    scripts.append(Script(nodes[0], *ours))
    link = scripts[0].link()
    scripts.append(Script(nodes[1], *(link if each == "LINK" else each for each in theirs)))
    for script in scripts:
        script.end()


def check_rounds(nodes: tuple[RealNode, RealNode], last: int) -> None:
    """Both nodes stand on the same state, and both members were in each round's mean."""
    run = nodes[0].row()["run"]
    assert nodes[0].saved_state(run) == nodes[1].saved_state(run)
    rounds = nodes[0].client.rounds(run)
    assert [each["round"] for each in rounds] == list(range(1, last + 1))
    assert all(each["contributors"] == 2 for each in rounds)


@pytest.mark.slow
@pytest.mark.swarm
def test_two_machines_train_digits(nodes: tuple[RealNode, RealNode], scripts: list[Script], tmp_path: Path) -> None:
    example, saved = str(EXAMPLES / "digits.py"), [tmp_path / "a.pt", tmp_path / "b.pt"]
    run_both(
        scripts,
        nodes,
        [example, "--rounds", "6", "--save", str(saved[0])],
        [example, "LINK", "--save", str(saved[1])],
    )
    ours, theirs = map(weights, saved)
    trained = [name for name in ours if "running" not in name and "num_batches" not in name]
    assert len(trained) == 6
    assert all(torch.equal(ours[name], theirs[name]) for name in trained)
    check_rounds(nodes, 6)
    assert float(re.findall(r"([\d.]+)% of", scripts[0].words())[0]) > 60


@pytest.mark.slow
def test_every_method_but_ddp_trains_a_module(
    nodes: tuple[RealNode, RealNode], scripts: list[Script], tmp_path: Path
) -> None:
    """One process on each node trains one run after the other: by each method both end on the same bits."""
    train_by(METHODS, nodes, scripts, tmp_path)
    for method in METHODS:
        ours, theirs = (weights(tmp_path / f"{method}-{place}.pt") for place in range(2))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), method
    said = {place: (tmp_path / f"said-{place}").read_text().split() for place in range(2)}
    assert said[0] == said[1], "both follow the run's progress, and end with the same rate"


@pytest.mark.slow
def test_replicas_of_a_module_are_exchanged(
    nodes: tuple[RealNode, RealNode], scripts: list[Script], tmp_path: Path
) -> None:
    """Both end with the mean of all, which is what their nodes hold."""
    train_by(REPLICAS, nodes, scripts, tmp_path)
    ids = {row["name"]: row["run"] for row in nodes[0].client.status()["runs"]}
    for method in REPLICAS:
        ends = [weights(tmp_path / f"{method}-{place}.pt") for place in range(2)]
        for node, end in zip(nodes, ends, strict=True):
            met = [row for row in node.client.rounds(ids[method]) if row["partner"] is not None]
            assert len(met) >= LAST - 2, "one may begin before the other is there, and the last round is with all"
            node.saved_state(ids[method])
            held = load_file(node.folder / "state.safetensors")
            assert all(torch.equal(held[name], end[name]) for name in end if name != "scale"), method
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0] if name != "scale"), method


@pytest.mark.slow
@pytest.mark.swarm
def test_a_script_that_was_killed_comes_back_and_goes_on(
    nodes: tuple[RealNode, RealNode], scripts: list[Script]
) -> None:
    """The other goes on without it, and with it again; which rounds these are is a matter of speed."""
    example = str(EXAMPLES / "digits.py")
    scripts.append(Script(nodes[0], example, "--rounds", "100000"))
    link = scripts[0].link()
    scripts.append(Script(nodes[1], example, link))
    until(lambda: nodes[1].round() >= 2, "a few rounds", scripts[1].words, PATIENCE)

    def contributors() -> int:
        """To the last round."""
        return int(nodes[0].client.rounds(nodes[0].row()["run"])[-1]["contributors"])

    until(lambda: contributors() == 2, "a round of both", scripts[1].words, PATIENCE)
    scripts[1].process.kill()
    scripts[1].process.wait()
    until(lambda: "has gone: run it again" in str(nodes[1].row()["waiting_for"]), "the loss to be said", nodes[1].words)
    until(lambda: contributors() == 1, "a round without it", nodes[0].words)
    scripts[1] = Script(nodes[1], example, "digits")  # by the name of a run that the node is in
    until(lambda: contributors() == 2, "a round with it", scripts[1].words, PATIENCE)


@pytest.mark.slow
def test_a_trainer_of_transformers_takes_part(
    nodes: tuple[RealNode, RealNode], scripts: list[Script], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate", reason="accelerate IS NOT INSTALLED: see `make install`")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(500)))
    example, folders = str(EXAMPLES / "hf_trainer.py"), [str(tmp_path / "a"), str(tmp_path / "b")]
    run_both(
        scripts,
        nodes,
        [example, str(text), "--rounds", "3", "--save", folders[0]],
        [example, str(text), "--link", "LINK", "--save", folders[1]],
    )
    ours, theirs = (load_file(Path(folder) / "model.safetensors") for folder in folders)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    check_rounds(nodes, 3)
