"""Becoming the worker of a run that this machine's node is in.

A process has one part in a run. Who comes again, as a notebook's cell that is run twice does, takes the place of the
part that is still open; an optimizer that has lost its place so says it at its next step, as it would train alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch.utils.hooks import RemovableHandle

from shoal.node.methods.registry import method_of
from shoal.node.script.module import OwnModule
from shoal.node.script.session import Session
from shoal.node.spec.custom import CustomSpec
from shoal.node.spec.manifest import decode_manifest
from shoal.node.worker.link import WorkerLink
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import RunId

REPLACED = (
    "another `wrap` of this script has taken the place of this optimizer in the run: step that one, or give each "
    "optimizer a run of its own"
)

_open: WeakValueDictionary[Path, Session] = WeakValueDictionary()  # of this process, by socket
_replaced: WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = WeakKeyDictionary()


def attach(socket: Path, own: OwnModule, batch_size: int | None, look: Callable[[], None]) -> Session:
    """Shake hands at `socket`; LocalError if the module is not the run's, or another process is its worker already."""
    if (earlier := _open.get(socket)) is not None and not earlier.is_closed:
        own.check_fits(earlier.own.spec())
        _replace(earlier, own.optimizer)
    link = WorkerLink.connect(socket)
    try:
        data = link.welcome.manifest
        manifest = decode_manifest(data, RunId(hashlib.sha256(data).digest()))  # the daemon has checked it
        if not isinstance(manifest.model, CustomSpec):
            raise LocalError("this run's model is trained by nodes themselves")
        own.check_fits(manifest.model)
        session = Session(link, own, method_of(manifest, own.layout), batch_size or manifest.method.batch, look)
    except BaseException:
        link.close()
        raise
    if (handle := _replaced.pop(own.optimizer, None)) is not None:
        handle.remove()
    _open[socket] = session
    return session


def _replace(earlier: Session, optimizer: torch.optim.Optimizer) -> None:
    """End a part in the run whose optimizer was not told so; it may be the same that comes again."""
    earlier.close()
    if earlier.own.optimizer is not optimizer:
        _replaced[earlier.own.optimizer] = earlier.own.optimizer.register_step_pre_hook(_refuse)


def _refuse(*_: object) -> None:
    raise LocalError(REPLACED)
