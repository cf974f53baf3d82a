"""What a report has from the node itself: its answers, the ends of its logs, the stacks of its threads, its folder."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from shoal.node.api.client import Client, NoDaemon, NotAnswering
from shoal.node.api.liveness import ALIVE_WITHIN
from shoal.node.base.home import Home
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.stacks import WORKER_STACKS, request_stacks, writer_of
from shoal.protocol.base.errors import ShoalError

LOG_END = 256 << 10  # bytes of each log
LAST_ROUNDS = 5  # whose timelines are of use
SHOWN_ROUNDS = 20
MOST_RUNS = 8
MOST_PEERS = 3  # that are examined, as by `shoal doctor`
MOST_PATHS = 2000
Texts = Iterator[tuple[str, str]]  # names of files in the report, and what is in them


# -- what it answers ------------------------------------------------------------------------------------------------


def answers(home: Home) -> Texts:
    """The answers of the API, each within some seconds; after a silence nothing else is asked."""
    client = Client(home, ALIVE_WITHIN, ALIVE_WITHIN)
    yield "answers/status.json", _json(status := client.status())
    yield from _answer("answers/netcheck.json", client.netcheck)
    yield from _answer("answers/peers.json", client.peers)
    for run in status["runs"][:MOST_RUNS]:
        name, now = str(run["run"])[:8], run.get("round") or 0
        yield from _answer(f"answers/rounds-{name}.json", partial(client.rounds, run["run"], SHOWN_ROUNDS))
        yield from _answer(f"answers/timeline-{name}-{now + 1}.json", partial(client.timeline, run["run"], now + 1))
    with suppress(ShoalError):
        unwell = [str(row["peer"]) for row in client.peers() if row.get("path") in (None, "relayed")]
        for peer in list(dict.fromkeys(unwell))[:MOST_PEERS]:
            yield from _answer(f"answers/doctor-{peer[-6:]}.json", partial(_examined, client, peer))


def _answer(name: str, ask: Callable[[], Any]) -> Texts:
    """An answer, or the error instead of it; NotAnswering."""
    try:
        yield name, _json(ask())
    except NotAnswering:
        raise
    except ShoalError as error:
        yield name, f"{error}\n"


def _examined(client: Client, peer: str) -> list[Any]:
    """What `shoal doctor` finds out about a peer in some seconds."""
    deadline, lines = time.monotonic() + ALIVE_WITHIN, []
    with suppress(ShoalError):
        for line in client.examine(peer):
            lines.append(line)
            if time.monotonic() > deadline:
                break
    return lines


def _json(answer: Any) -> str:
    return json.dumps(answer, indent=2) + "\n"


# -- what it has written --------------------------------------------------------------------------------------------


def logs(home: Home) -> Texts:
    """The ends of the logs of the daemon and its workers, and the timelines of the last rounds."""
    for log in sorted(home.logs.glob("*.log*")):
        yield f"logs/{log.name}", end_of(log)
    for run in sorted(home.runs.glob("*")):
        for log in sorted(run.glob("*.log*")):
            yield f"logs/{run.name[:8]}-{log.name}", end_of(log)
        if (timelines := run / "rounds.jsonl").exists():
            last = end_of(timelines, 4 * LOG_END).splitlines()[-LAST_ROUNDS:]
            yield f"timelines/{run.name[:8]}.jsonl", "\n".join([*last, ""])


def end_of(path: Path, most: int = LOG_END) -> str:
    """The last whole lines of a file, at most so many bytes; or why it cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            content = file.read(most)
    except OSError as error:
        return f"cannot be read: {error.strerror}\n"
    if size > most:  # a cut line may begin in the middle of a key, which nobody could recognise
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


def stacks(home: Home) -> Texts:
    """The stacks of all threads of a node that is starting, is ending or does not answer, and of its workers."""
    node = home.daemon_process()
    if node is None:
        return
    if _may_hang(home):
        yield "stacks.txt", request_stacks(node, home.stacks) or _no_stacks(node)
    for file in sorted(home.runs.glob(f"*/{WORKER_STACKS}"))[:MOST_RUNS]:
        worker = writer_of(file)
        if worker is not None and worker.is_here():
            yield f"stacks-{file.parent.name[:8]}-worker.txt", request_stacks(worker, file) or _no_stacks(worker)


def _may_hang(home: Home) -> bool:
    try:
        return Client(home, ALIVE_WITHIN).status().get("ending") is True
    except (NotAnswering, NoDaemon):  # no daemon: its process is there, and is starting or ending
        return True
    except ShoalError:
        return False


def _no_stacks(process: ProcessIdentity) -> str:
    return f"no answer; its state is {process.state()}\n"


def folder(home: Home) -> Texts:
    """All files of the home with modes, sizes and times; the contents stay here."""
    lines = [line for _, line in zip(range(MOST_PATHS), _listing(home.root, home.root), strict=False)]
    yield "home.txt", "\n".join([*lines, "..." if len(lines) == MOST_PATHS else "", ""])


def _listing(path: Path, root: Path) -> Iterator[str]:
    try:
        about = path.lstat()
    except OSError as error:
        yield f"{path.relative_to(root)}: {error.strerror}"
        return
    changed = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(about.st_mtime))
    yield f"{stat.filemode(about.st_mode)} {about.st_uid} {about.st_size:>12} {changed} {path.relative_to(root)}"
    if stat.S_ISDIR(about.st_mode):
        try:
            inside = sorted(path.iterdir())
        except OSError as error:
            yield f"{path.relative_to(root)}: {error.strerror}"
            return
        for each in inside:
            yield from _listing(each, root)
