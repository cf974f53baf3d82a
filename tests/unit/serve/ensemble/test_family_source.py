"""A family as a source: what cannot be used is left out, by name, and the rest is served."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.inference.ensemble import family as module
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.family import FamilyLoader, open_family
from shoal.node.inference.ensemble.panel import log_likelihoods
from shoal.node.inference.models import expert_of
from shoal.node.inference.remote.sources import File, Node, Part, Sources
from shoal.node.inference.scorer import Piece, Predictions
from shoal.node.inference.served import ServeOptions
from shoal.node.manifest.manifest import load_manifest, parse_manifest
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId
from tests.integration.asking_kit import TINY, text_of
from tests.unit.serve.ensemble.kit import Unigram, theta, write_file

DIGITS = Path(__file__).parents[4] / "examples" / "digits_experts.toml"
MANIFEST = parse_manifest(text_of(TINY, "prose", "code"))


class Known(Node):
    """A node that is made up, and what it knows of the parts."""

    parts: tuple[Part, ...] = ()

    def sources(self) -> Sources:
        return Sources(MANIFEST, PeerId("me"), "/nowhere", Known.parts)


def file(folder: Path, seed: int, *, good: bool = True, here: bool = True, peers: tuple[str, ...] = ()) -> File:
    path = folder / f"{seed}.safetensors"
    if good:
        write_file(path, theta(seed, TINY), TINY)
    else:
        path.write_bytes(b"no tensors at all")
    return File(file=f"{seed:064x}", round=seed, finished=True, path=str(path) if here else None, peers=peers)


def part(name: str, *files: File) -> Part:
    return Part(part=name, model=TINY, files=files)


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FamilyLoader:
    Known.parts = (part("prose", file(tmp_path, 1)), part("code", file(tmp_path, 3, good=False), file(tmp_path, 2)))
    monkeypatch.setattr(module, "Node", Known)
    return FamilyLoader(Known(Home(tmp_path), "fam"), ServeOptions(device="cpu", slots=2))


def test_a_file_that_is_no_model_is_passed_over_for_the_one_before(loader: FamilyLoader) -> None:
    panel = loader.load()
    assert [each.key.split()[:2] for each in panel.members] == [["prose", f"{1:064x}"], ["code", f"{2:064x}"]]
    assert panel.missing == ()


def test_one_stranger_with_a_bad_file_does_not_cost_the_others(
    loader: FamilyLoader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Known.parts = (part("prose", file(tmp_path, 1)), part("code", file(tmp_path, 3, good=False)))
    first = loader.load()
    again = loader.load(first.members)
    assert ([each.name for each in again.members], again.missing) == (["prose"], ("code",))
    assert again.members[0] is first.members[0]
    assert caplog.text.count("cannot be used") == 1, "it is not tried, nor named, at each look"
    about = Ensemble(again, limit=8, slots=2, mix="full", at_once=1).about()
    assert (about["missing"], [row["name"] for row in about["experts"]]) == (["code"], ["prose"])
    Known.parts = Known.parts[1:]
    with pytest.raises(LocalError, match="nobody answers"):
        loader.load()


def test_a_family_that_paints_says_how_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Paints(Known):
        def sources(self) -> Sources:
            return Sources(load_manifest(DIGITS), PeerId("me"), "/nowhere", Known.parts)

    flow = load_manifest(DIGITS).model
    Known.parts = (Part(part="cluster-0", model=flow, files=(file(tmp_path, 1),)),)
    with pytest.raises(LocalError, match="paints: name the folder that `shoal experts fetch FAMILY DIR` writes"):
        FamilyLoader(Paints(Home(tmp_path), "fam"), ServeOptions(device="cpu", slots=2))
    with pytest.raises(LocalError, match="paints"):
        expert_of(flow, theta(1, TINY), ServeOptions(device="cpu"), "v")


class Away(Unigram):
    """An expert that no peer answers for."""

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        answer = super().extend(pieces, within)
        return Predictions(answer.rows * 0, answer.within * 0, {piece.slot: TransportError("gone") for piece in pieces})


def test_an_expert_that_says_nothing_has_no_prior_not_the_best_of_all() -> None:
    (worth,) = log_likelihoods(Unigram(a=0.5), [(97, 97)])
    assert worth == pytest.approx(-0.6931, abs=1e-4)
    with pytest.raises(TransportError, match="gone"):
        log_likelihoods(Away(a=0.5), [(97, 97)])


def test_it_is_followed_until_the_end_and_no_longer(loader: FamilyLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    home = Home(Path("/nowhere"))
    served = open_family(home, "fam", ServeOptions(device="cpu", slots=2))
    assert isinstance(served.scorer, Ensemble)
    assert served.follow is not None
    over, before = threading.Event(), served.scorer.panel
    thread = threading.Thread(target=served.follow, args=(over,), daemon=True)
    thread.start()
    Known.parts = Known.parts[:1]
    waiting = threading.Event()
    for _ in range(2000):
        if [each.name for each in served.scorer.panel.members] == ["prose"]:
            break
        waiting.wait(0.01)
    assert served.scorer.panel is not before
    assert [each.name for each in served.scorer.panel.members] == ["prose"]
    over.set()
    thread.join(20)
    assert not thread.is_alive()
