"""The kind of run that a manifest asks for."""

from __future__ import annotations

from shoal.node.manifest.manifest import Introduction
from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.reloading import Kept
from shoal.node.run.replica_run import ReplicaRun
from shoal.node.run.resting import Rested
from shoal.node.run.run import Run
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.protocol.base.signing import Signer
from shoal.protocol.net.peers.network import Network


def open_run(
    found: Introduction,
    signer: Signer,
    network: Network,
    settings: RunSettings,
    checkpoint: Checkpoint | None,
    kept: Kept,
) -> Run:
    """The run, before it is started; `checkpoint` is that of its origin, `kept` what we have left of it ourselves."""
    signed = found.manifest, found.author, found.signature
    if found.manifest.method.has_replicas:
        own = kept if isinstance(kept, Checkpoint) else None
        return ReplicaRun(*signed, signer, network, settings, checkpoint, own)
    rested = kept if isinstance(kept, Rested) else None
    return AgreedRun(*signed, signer, network, settings, checkpoint, rested)
