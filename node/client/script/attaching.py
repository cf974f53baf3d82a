"""Becoming the worker of a run that this machine's node is in.

A process has one part in a run. A second one, as of a notebook's cell that is run twice, replaces the one that is still
open; the replaced optimizer raises an error at its next step, as it would train alone. A part whose optimizer was
garbage-collected is over, whether or not it was closed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch

from shoal.node.client.script.module import OwnModule
from shoal.node.client.script.session import Session
from shoal.node.client.script.told import Line
from shoal.node.ipc.link import WorkerLink
from shoal.node.manifest.manifest import decode_manifest
from shoal.node.manifest.model import CustomSpec
from shoal.node.training.methods.registry import method_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId

_open: WeakValueDictionary[Path, Session] = WeakValueDictionary()  # of this process, by socket
_lines: dict[Path, Line] = {}  # the newest of each socket, which outlives a session that nobody has any more
_replaced: WeakKeyDictionary[torch.optim.Optimizer, ref[Session]] = WeakKeyDictionary()  # by what they have stepped,
# whose hook keeps them: held from here too, a session, which holds its optimizer, would keep both for ever


def attach(socket: Path, own: OwnModule, batch_size: int | None, look: Callable[[], None]) -> Session:
    """Shake hands at `socket`; LocalError if the module is not the run's, or another process is its worker already."""
    if (earlier := _open.get(socket)) is not None and not earlier.is_closed:
        own.check_fits(earlier.own.spec())
        earlier.give_way()
        _replaced[earlier.own.optimizer] = ref(earlier)
    if (line := _lines.pop(socket, None)) is not None:
        line.hang_up()
    line = Line(WorkerLink.connect(socket))
    try:
        data = line.link.welcome.manifest
        manifest = decode_manifest(data, RunId(hashlib.sha256(data).digest()))  # the daemon has checked it
        if not isinstance(manifest.model, CustomSpec):
            raise LocalError("this run's model is trained by nodes themselves")
        own.check_fits(manifest.model)
        session = Session(line, own, method_of(manifest, own.layout), batch_size or manifest.method.batch, look)
    except BaseException:
        line.hang_up()
        raise
    replaced = _replaced.pop(own.optimizer, None)
    if replaced is not None and (session_then := replaced()) is not None:
        session_then.close()
    _open[socket], _lines[socket] = session, line
    return session
