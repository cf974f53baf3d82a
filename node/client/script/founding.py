"""Creating a run of a script's own module: its manifest, and its first weights as the run's origin."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shoal.node.api.client import Client
from shoal.node.base.explain import explain
from shoal.node.base.home import Home
from shoal.node.base.toml import dump
from shoal.node.client.script.module import OwnModule
from shoal.node.manifest.manifest import MAX_MANIFEST, Manifest
from shoal.node.run.facts import first_base
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.lineage import with_origin
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.methods.registry import method_of
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.shape import shape_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.genesis import NONCE_SIZE, run_id

ORIGIN = "origin"  # the folder within a run's


def manifest_of(own: OwnModule, tables: Mapping[str, Any]) -> Manifest:
    """The manifest of a run of this module, without its origin; LocalError if `tables` are not valid ones."""
    try:
        model = own.spec().model_dump()
        manifest = Manifest.model_validate({**tables, "model": model, "data": {"name": "own"}})
    except ValidationError as error:
        raise LocalError(f"this run cannot be: {explain(error, Manifest)}", code="manifest-wrong") from error
    if len(manifest.canonical()) > MAX_MANIFEST:
        raise LocalError(
            f"the names and shapes of the module's tensors are more than the {MAX_MANIFEST >> 10} KiB of a manifest: "
            "give them shorter names; layers that are alike and numbered one after the other (layers.0.weight, "
            "layers.1.weight) take no more than one",
            code="script-module",
        )
    return manifest


def found(client: Client, home: Home, own: OwnModule, tables: Mapping[str, Any]) -> str:
    """Found a run that begins with the module's weights, on the node of `home`; returns its id in hex.

    The weights are written as a checkpoint, and the run goes on from that: so its manifest has their root.
    """
    plain, me = manifest_of(own, tables), PeerId(client.status()["peer"])
    agreed, _ = method_of(plain, own.layout).begin(own.read())
    state = CommittedState(shape_of(plain, own.layout), agreed)
    base = first_base(plain, state.current.root)
    about = About.of(plain, plain.digest, base, (), samples=0, peer=me, inner_steps=0)
    manifest = with_origin(plain, Checkpoint(home.runs, about, plain, state.current.shape, agreed, None))
    nonce = secrets.token_bytes(NONCE_SIZE)
    folder = home.make_run_folder(run_id(manifest.digest, me, nonce).hex()) / ORIGIN
    path = write_checkpoint(folder, about, state.current, None)
    try:
        return str(client.create_run(dump(manifest.model_dump(mode="json")), True, [str(path)], nonce.hex())["run"])
    except LocalError:  # the node has refused; after a TransportError it may have founded the run, and needs the folder
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise
