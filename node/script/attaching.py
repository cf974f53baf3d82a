"""Becoming the worker of a run that this machine's node is in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from shoal.node.methods.registry import method_of
from shoal.node.script.module import OwnModule
from shoal.node.script.session import Session
from shoal.node.spec.custom import CustomSpec
from shoal.node.spec.manifest import decode_manifest
from shoal.node.worker.link import WorkerLink
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import RunId


def attach(socket: Path, own: OwnModule, batch_size: int | None, look: Callable[[], None]) -> Session:
    """Shake hands at `socket`; LocalError if the module is not the run's, or it has a worker already."""
    link = WorkerLink.connect(socket)
    try:
        data = link.welcome.manifest
        manifest = decode_manifest(data, RunId(hashlib.sha256(data).digest()))  # the daemon has checked it
        if not isinstance(manifest.model, CustomSpec):
            raise LocalError("this run's model is trained by nodes themselves")
        own.check_fits(manifest.model)
        return Session(link, own, method_of(manifest, own.layout), batch_size or manifest.method.batch, look)
    except BaseException:
        link.close()
        raise
