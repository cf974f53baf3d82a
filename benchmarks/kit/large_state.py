"""A run whose state is large, and a checkpoint of it that one founder has and all others must download.

As a process of its own, as the state takes memory: `large_state.py MANIFEST FOLDER` writes the checkpoint.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MIB_OF_LAYER = 128  # of the parameters and the momentum of one layer
MANIFEST = """
name = "join"
[model]
dim = 1024
layers = {layers}
heads = 8
kv_heads = 8
hidden = 4096
context = 16
[rounds]
start_members = 9
"""  # as many members as never come, so no round begins


def make(folder: Path, mib: int) -> tuple[str, Path]:
    """A manifest of a state of about so many MiB, and the folder of its checkpoint."""
    manifest = folder / "manifest.toml"
    manifest.write_text(MANIFEST.format(layers=mib // MIB_OF_LAYER))
    done = subprocess.run(
        [sys.executable, __file__, str(manifest), str(folder)], check=True, stdout=subprocess.PIPE, text=True
    )
    return manifest.read_text(), Path(done.stdout.strip())


def size(checkpoint: Path) -> int:
    """Bytes of the state in a checkpoint."""
    return sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


def main() -> int:
    """Write the checkpoint and print its folder."""
    import numpy as np
    import torch

    from shoal.node.manifest.manifest import parse_manifest
    from shoal.node.training.checkpoint.about import About
    from shoal.node.training.checkpoint.write import write_checkpoint
    from shoal.node.training.models.registry import layout_of
    from shoal.node.training.state.committed import CommittedState
    from shoal.node.training.state.shape import shape_of
    from shoal.protocol.averaging.policy import Base
    from shoal.protocol.base.ids import PeerId, digest

    text, folder = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    manifest = parse_manifest(text)
    shape, random = shape_of(manifest, layout_of(manifest.model)), np.random.default_rng(7)
    size = shape.layout.size
    given = {name: torch.from_numpy(random.random(size, np.float32)) for name in shape.vectors}
    state = CommittedState(shape, given, 1)
    me = PeerId("12D3KooWFounder")
    base = Base(1, 1, digest("history of the benchmark"), state.current.root)
    about = About.of(manifest, digest("run of the benchmark"), base, (me,), samples=1, peer=me, inner_steps=0)
    print(write_checkpoint(folder, about, state.current, None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
