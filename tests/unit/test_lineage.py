"""A run that goes on from a checkpoint: its manifest, the base of its first round, and mismatches."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.client.up.plan import to_toml
from shoal.node.manifest.manifest import Manifest, decode_manifest, parse_manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.run.facts import SLACK, run_facts
from shoal.node.training.checkpoint.lineage import check_fits, with_origin
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import NO_DIGEST, digest
from tests.run_kit import id_of
from tests.unit.checkpoint_kit import MANIFEST, ME, write

RUN = id_of(MANIFEST)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return load(write(tmp_path, 4))


def test_the_new_run_has_an_id_of_its_own_and_says_where_it_comes_from(checkpoint: Checkpoint) -> None:
    manifest = with_origin(MANIFEST, checkpoint)
    assert id_of(manifest) != id_of(MANIFEST)
    assert manifest.origin is not None
    assert (manifest.origin.run, manifest.origin.round) == (id_of(MANIFEST).hex(), 4)
    assert manifest.first_round == 5
    assert decode_manifest(manifest.canonical()) == manifest
    assert parse_manifest(to_toml(manifest)) == manifest
    assert with_origin(manifest, checkpoint) == manifest


def test_its_first_round_builds_on_the_other_runs_history_and_its_author_decides(checkpoint: Checkpoint) -> None:
    facts = run_facts(with_origin(MANIFEST, checkpoint), RUN, ME, seeded=NO_DIGEST, chunks=(3,))
    about = checkpoint.about
    origin = facts.origin
    assert (origin.round, origin.history.hex(), origin.root.hex()) == (4, about.history, about.root)
    assert origin.entry == 0
    register = facts.register()
    assert register.voters == (ME,)
    assert [(part.round, part.history, part.root) for part in register.parts] == [(4, origin.history, origin.root)]
    assert facts.policy.members_needed(5) == MANIFEST.rounds.start_members
    assert facts.policy.members_needed(1) == MANIFEST.rounds.min_members


def test_only_the_pace_of_steps_gives_slack() -> None:
    for pace, slack in (("deadline", 0.0), ("steps", SLACK)):
        rounds = MANIFEST.rounds.model_copy(update={"pace": pace})
        manifest = MANIFEST.model_copy(update={"rounds": rounds})
        assert run_facts(manifest, RUN, ME, seeded=NO_DIGEST, chunks=(3,)).policy.slack == slack


def test_a_run_from_nowhere_begins_with_the_history_of_its_manifest() -> None:
    facts = run_facts(MANIFEST, RUN, ME, seeded=NO_DIGEST, chunks=(3,))
    assert (facts.origin.round, facts.origin.history) == (0, digest("genesis", MANIFEST.digest))


def test_the_canonical_form_of_a_run_from_nowhere_names_no_origin() -> None:
    assert b"origin" not in MANIFEST.canonical()


def test_what_does_not_fit_is_refused_in_a_sentence(checkpoint: Checkpoint, tmp_path: Path) -> None:
    manifest = with_origin(MANIFEST, checkpoint)
    with pytest.raises(LocalError, match="goes on from round 4 of another: name the checkpoint"):
        with_origin(manifest, None)
    with pytest.raises(LocalError, match="goes on from no checkpoint"):
        check_fits(MANIFEST, checkpoint)
    with pytest.raises(LocalError, match="is of round 6"):
        check_fits(manifest, load(write(tmp_path, 6)))
    wider = MANIFEST.model_copy(update={"model": MANIFEST.model.model_copy(update={"layers": 2})})
    with pytest.raises(LocalError, match=r"of the checkpoint: model\.layers is 2, there 1$"):
        with_origin(wider, checkpoint)
    coarser = wider.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"chunk_bytes": 1 << 20})})
    with pytest.raises(LocalError, match=r"model\.layers is 2, there 1, rounds\.chunk_bytes is 1048576, there 4096$"):
        with_origin(coarser, checkpoint)
    for name in ("ddp", "sparseloco", "co2"):
        other = parse_manifest(f'name = "other"\n[method]\nname = "{name}"').method
        with pytest.raises(LocalError, match=f"diloco has made cannot be gone on from with {name}"):
            with_origin(MANIFEST.model_copy(update={"method": other}), checkpoint)
    for name in ("diloco-eager", "diloco-delayed"):
        with_origin(MANIFEST.model_copy(update={"method": MethodSpec(name=name)}), checkpoint)  # type: ignore[arg-type]
    over = MANIFEST.model_copy(update={"rounds": MANIFEST.rounds.model_copy(update={"last": 4})})
    with pytest.raises(LocalError, match=r"rounds\.last is 4, but the run begins with round 5"):
        with_origin(over, checkpoint)
    check_fits(manifest, None)  # then the state is downloaded


def test_a_run_does_not_end_before_it_begins(checkpoint: Checkpoint) -> None:
    table = with_origin(MANIFEST, checkpoint).model_dump()
    table["rounds"]["last"] = 4
    with pytest.raises(ValueError, match="begins with round 5"):
        Manifest.model_validate(table)
