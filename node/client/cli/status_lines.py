"""`shoal status` and `shoal run ls` for people: within the terminal's width from 60 columns on, in a pipe unfolded.

What is not known takes no room. Names come before ids and digests, which are cut short, and of the node's addresses
only the best one is shown. `whole` shows ids and digests in full, all addresses, and more figures.
"""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.node.api import present
from shoal.node.api.answers import Answer, RunRow, Status
from shoal.node.api.present import END, bits, clean, colour, number, short, size
from shoal.node.api.status import WRONG, absence, headline, is_first_back, is_over, join_command, remedy
from shoal.node.base import quantities
from shoal.node.client.cli.diagnosis_lines import place
from shoal.protocol.base.multiaddrs import place_of, reach

COLOURS = {"SOLO": "yellow", "SPLIT": "bold red", "CONNECTED": "green", "IN-ROUND": "bold green"}
LABEL, INDENT = 9, 2  # columns

Line = tuple[str, str]  # a line, or a text to be folded, and its style


def show_status(status: Status, page: str, whole: bool = False) -> None:
    """Print the node, the URL of its page, what is wrong with it, and its runs."""
    _print(status_lines(status, page, _columns(), whole))


def show_runs(runs: Sequence[RunRow]) -> None:
    """Print some lines per run: how far it is, and what holds it up."""
    if runs:
        _print(run_lines(runs, _columns()))
    else:
        print("in no run; `shoal run create` or `shoal run join` changes that")


def status_lines(status: Status, page: str, columns: int | None, whole: bool = False) -> list[Line]:
    """The lines of `shoal status`, folded at so many columns; None: not folded."""
    found = []
    for label, words, style in _node(status, page, whole):
        found += [(line, style) for line in _row(label, words, columns)] if words else []
    runs = status.get("runs")
    return [*found, ("", ""), *run_lines(runs, columns, whole)] if runs else found


def run_lines(runs: Sequence[RunRow], columns: int | None, whole: bool = False) -> list[Line]:
    """The lines about runs, an empty one between two of them."""
    found: list[Line] = []
    for run in runs:
        found += [("", "")] if found else []
        indent = 0
        for words, style in _run(run, whole):
            lines = _folded(words, columns, " " * indent, " " * (indent + INDENT))
            found += [(line, style) for line in lines]
            indent = INDENT
        if run.get("link"):
            found += [(line, "") for line in _folded(absence(run), columns, " " * INDENT, " " * INDENT)]
            found.append((clean(join_command(run)), ""))  # whole, to be copied
    return found


# -- the node -----------------------------------------------------------------------------------------------


def _node(status: Status, page: str, whole: bool) -> Iterator[tuple[str, str, str]]:
    """(label, words, style) of each row; the words are empty if there is nothing to say."""
    yield "state", _state(status), COLOURS.get(str(status.get("state")), "")
    yield "draining", "it stops once the rounds under way are committed" if status.get("draining") else "", "yellow"
    for warning in status.get("warnings") or ():
        yield "warning", f"{warning['words']} ({warning['code']})", "yellow"
    memory = f"{size(status.get('memory'))} of memory" if status.get("memory") else ""
    peer = str(status.get("peer"))
    yield "peer", _joined(peer if whole else peer[-END:], f"Shoal {status.get('version')}", memory), ""
    addresses = list(map(str, status.get("addresses") or ()))
    reachability = str(status.get("reachability") or "")
    yield "reached", reachability if whole else _joined(reachability, _best(addresses)), ""
    if whole:
        yield from (("" if number else "address", each, "") for number, each in enumerate(addresses))
        untold = status.get("untold_addresses") or ()
        yield from (("untold", f"{each} (too many to tell others)", "") for each in untold)
        yield "relays", ", ".join(status.get("relays") or ()), ""
    yield "router", _router(status.get("port_mapping") or {}), ""
    line: Answer = status.get("line") or {}
    yield "line", _joined(*(f"{bits(line[way])} {way}" for way in ("up", "down") if line.get(way))), ""
    yield "dht", _dht(status.get("dht") or {}), ""
    yield "limits", quantities.limits_in_words(status.get("limits") or {}) or "", ""
    yield "today", _today(status), ""
    if whole and (traffic := status.get("traffic")):
        yield "traffic", f"{size(traffic['sent'])} sent, {size(traffic['received'])} received", ""
    yield "page", page, ""


def _state(status: Status) -> str:
    """The state, and what is wrong or unusual about it and what to do, or else with how many peers."""
    state, advice = str(status.get("state")), remedy(status) or ""
    is_calm = not (status.get("paused") or status.get("obstacle") or is_first_back(status) or is_over(status))
    if state in WRONG or not is_calm:
        said = headline(status)
        return f"{state}. {said[:1].upper()}{said[1:]} {advice}".rstrip()
    count = status.get("peers")
    return f"{state}, {_count(count, 'peer')}" if count else state


def _best(addresses: Sequence[str]) -> str:
    """The address that most peers can use, without our PeerID, and how many more there are."""
    if not addresses:
        return ""
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return f"at {place(place_of(min(addresses, key=reach)))}{more}"


def _router(mapping: Answer) -> str:
    """The port that the router forwards, or why it does not, if one was asked."""
    if mapping.get("external") and not mapping.get("behind_another_nat"):
        return f"forwards {mapping['external']} by {mapping['protocol']}"
    return f"forwards no port: {mapping['error']}" if mapping.get("error") else ""


def _today(status: Status) -> str:
    """What the node has done and sent today, and about what a day costs; empty if nothing is known of either."""
    done, cost = status.get("today"), status.get("day")
    passed = f"{size(done['sent'])} sent, {size(done['received'])} received" if done else ""
    rounds = _count(done["rounds"], "round") if done and done["rounds"] else ""
    daily = f"a day costs about {size(cost['sent'])} up and {size(cost['received'])} down" if cost else ""
    return _joined(rounds, passed if rounds or daily else "", daily)


def _dht(dht: Answer) -> str:
    """Our part in the DHT, in a phrase."""
    if not dht:
        return ""
    part = f"serving, holds {_count(dht['records'], 'record')}" if dht["serves"] else "a client only"
    return f"{part}, knows {_count(dht['servers'], 'server')}"


# -- a run --------------------------------------------------------------------------------------------------


def _run(run: RunRow, whole: bool) -> Iterator[Line]:
    """What is to be said of a run, each text for lines of its own."""
    id = run["run"] if whole else short(run["run"])
    name = f"{run['name']} ({id})" if run.get("name") else f"run {id}"
    yield f"{name}: {_standing(run)}", "bold"
    for words in (_figures(run, whole), _worker(run)):
        if words:
            yield words, ""
    if run.get("failure"):
        yield f"failed on this node: {run['failure']}", "bold red"
    elif run.get("waiting_for"):
        yield str(run["waiting_for"]), "yellow"
    if run.get("branch"):
        yield str(run["branch"]), "yellow"
    if run.get("branch_event"):
        yield f"{_clock(run['branch_event_at'])}: {run['branch_event']}", ""
    for warning in run.get("warnings") or ():
        yield f"{warning['words']} ({warning['code']})", "yellow"


def _clock(at: float | None) -> str:
    """Day and time here of seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _standing(run: RunRow) -> str:
    """How far a run is, with how many members, and what it does now."""
    is_open = run.get("members") is not None
    last = f" of {run['last']}" if run.get("last") else ""
    experts = run.get("experts")
    return _joined(
        f"round {run['round']}{last}" if is_open or run.get("round") else "",
        _count(run["members"], "member") if is_open else "",
        *_phase(run),
        f"{experts['finished']} of {experts['parts']} experts finished" if experts else "",
    )


def _phase(run: RunRow) -> list[str]:
    """What the node does in a run now; "training" only if it is this node that trains."""
    phase = str(run.get("phase"))
    if run.get("trains") is not False or phase in ("finished", "failed"):
        return [phase]
    return [*([phase] if phase != "training" else []), "does not train here"]


def _figures(run: RunRow, whole: bool) -> str:
    digest, root = run.get("digest"), run.get("root") if whole else None
    speed = run.get("tokens_per_second")
    return _joined(
        f"loss {number(run['loss'], 4)}" if run.get("loss") is not None else "",
        _validation(run),
        f"step {run['step']}" if run.get("step") else "",
        f"{run['samples']:,} tokens" if run.get("samples") else "",
        f"{speed:,.0f} tokens/s" if speed else "",
        f"digest {digest if whole else short(digest)}" if digest else "",
        f"root {root}" if root else "",
    )


def _validation(run: RunRow) -> str:
    """The validation loss, with the round to which it belongs."""
    loss = run.get("validation_loss")
    return f"validation loss {number(loss, 4)} after round {run.get('validation_round')}" if loss is not None else ""


def _worker(run: RunRow) -> str:
    """The worker's device, its memory and its utilisation; empty without a worker."""
    device, memory, on_device = run.get("device"), run.get("worker_memory"), run.get("device_memory")
    if not (device or memory):
        return ""
    return _joined(
        f"on {device}" if device else "",
        f"{size(on_device)} of its memory" if on_device else "",
        f"{size(memory)} of main memory" if memory else "",
        f"micro-batch {run['micro_batch']}" if run.get("micro_batch") else "",
        f"trains {_share(run['utilisation'])} of the time" if run.get("utilisation") is not None else "",
        f"MFU {_share(run['model_flops_utilization'])}" if run.get("model_flops_utilization") is not None else "",
    )


# -- lines --------------------------------------------------------------------------------------------------


def _columns() -> int | None:
    """The columns of the terminal; None without one."""
    return shutil.get_terminal_size().columns if present.is_terminal() else None


def _print(lines: Iterable[Line]) -> None:
    for text, style in lines:
        print(colour(text, style) if style else text)


def _row(label: str, words: str, columns: int | None) -> list[str]:
    """A row; if a word, such as an address, is too long for its column, all words stand below the label."""
    if columns is not None and max(map(len, words.split())) > columns - LABEL:
        return [*([label] if label else []), *_folded(words, columns, " " * INDENT, " " * INDENT)]
    return _folded(words, columns, f"{label:<{LABEL}}", " " * LABEL)


def _folded(words: str, columns: int | None, first: str, rest: str) -> list[str]:
    """The lines of a text, with what they begin with. No word is broken: an address stays whole, to be copied."""
    text = clean(words)
    if columns is None:
        return [first + text]
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _joined(*parts: str) -> str:
    """The parts that are not empty."""
    return ", ".join(filter(None, parts))


def _count(number: Any, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _share(value: Any) -> str:
    return f"{value:.0%}"
