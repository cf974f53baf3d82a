"""What is left on disk if a script's run could not be founded, or if nobody knows whether it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.node.base.home import Home
from shoal.node.client.script.founding import found
from shoal.node.client.script.module import OwnModule
from shoal.protocol.base.errors import LocalError, TransportError


@pytest.mark.parametrize(("error", "stays"), [(LocalError("no"), False), (TransportError("no answer"), True)])
def test_a_folder_goes_only_if_the_node_has_refused(tmp_path: Path, error: Exception, stays: bool) -> None:
    class Client:
        def status(self) -> dict[str, str]:
            return {"peer": "12D3KooWAuthor"}

        def create_run(self, *_: object) -> dict[str, str]:
            raise error

    model, home, client = nn.Linear(4, 2), Home(tmp_path).create(), Client()
    own = OwnModule(model, torch.optim.SGD(model.parameters(), lr=0.1))
    anything: Any = client
    with pytest.raises(type(error)):
        found(anything, home, own, {"name": "a"})
    assert any(home.runs.rglob("*.safetensors")) == stays
