"""Before a run is created: are others in a run of the same manifest, which a person may want to join instead?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shoal.node.client.waiting import Waiting
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.api.answers import FoundRun
    from shoal.node.api.client import Client

NOTHING_DONE = "nothing was created or joined: --new creates a run without asking"


def run_instead(client: Client, manifest: str, as_json: bool) -> str:
    """The link of the run that is joined instead of a new one; empty: none is, or nobody can be asked."""
    from shoal.node.api.present import is_terminal

    with Waiting("looking for runs of this manifest"):
        found = client.lookup_runs(manifest)
    if not found:
        return ""
    if as_json or not (sys.stdin.isatty() and is_terminal()):
        ids = ", ".join(each["run"][:8] for each in found)
        print(f"this manifest has runs already ({ids}): creating another one", file=sys.stderr)
        return ""
    return _chosen(found)


def _chosen(found: list[FoundRun]) -> str:
    """Lists the runs, and asks which one is meant. A run that this node is in is shown, but cannot be joined again."""
    from shoal.node.api.present import show_same_runs

    show_same_runs(found)
    others = [each for each in found if not each["joined"]]
    if not others:
        print("Create another run of it? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return ""
        raise LocalError(NOTHING_DONE, code="not-confirmed")
    which = f"1-{len(others)}" if others[1:] else "1"
    print(f"Join one [{which}], or create another [n]? ", end="", flush=True)
    answer = sys.stdin.readline().strip().lower()
    if answer in ("n", "no", "new"):
        return ""
    links = {str(number): each["link"] for number, each in enumerate(others, 1)}
    if answer in links:
        return links[answer]
    raise LocalError(NOTHING_DONE, code="not-confirmed")
