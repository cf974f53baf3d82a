"""Pictures are an extension: its names are registered, and the rest of Shoal needs neither it nor its packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.base.extensions import extension, find_extension
from shoal.node.base.extra import install_command
from shoal.node.diffusion.extension import EXTENSION, NAMES
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.protocol.base.errors import LocalError
from tests.unit.checkpoint_kit import write

# What a plain install lacks cannot be imported, and neither can the package: doing so is an ImportError.
PLAIN = "import sys\nfor name in ('shoal.node.diffusion', 'PIL', 'sklearn'):\n    sys.modules[name] = None\n"
GENERATE = "from shoal.node.client.cli import main\nsys.argv = ['shoal', 'generate', *sys.argv[1:]]\nmain()\n"
NODE = """
import shoal.node.daemon.daemon
from shoal.node.client.cli import main
sys.argv[1:] = ["node", "start", "--help"]
main()
"""
WORKER = """
import shoal.node.worker.worker
from pathlib import Path
from shoal.node.extensions import register_extensions
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.trainer.inner import InnerTrainer
register_extensions()
manifest = parse_manifest('name = "text"\\n[model]\\ndim = 16\\nlayers = 1\\nheads = 2\\nkv_heads = 1\\nhidden = 32\\n'
    'context = 16\\n[data]\\nname = "files"\\n[method]\\ninner_steps = 1\\nbatch = 2\\n')
Path(sys.argv[1], "text.txt").write_text("a plain text, " * 400)
trainer = InnerTrainer(manifest, load_corpus(manifest.data, [Path(sys.argv[1])]))
assert trainer.train(1, [0]).steps == 1
"""


def test_what_is_registered_is_what_the_package_brings() -> None:
    assert [find_extension(name) for name in NAMES] == [EXTENSION] * 3
    assert find_extension("llama") is None
    with pytest.raises(LocalError, match="nothing here knows models or data named strange"):
        extension("strange")


def plain(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PLAIN + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_text_is_written_without_it(tmp_path: Path) -> None:
    model = ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, context=64)
    source = write(tmp_path, 1, Manifest(name="text", model=model))
    done = plain(GENERATE, str(source), "Once", "--max-tokens", "3", "--threads", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [NODE, WORKER], ids=["node", "worker"])
def test_a_node_and_a_worker_of_text_do_without_it(program: str, tmp_path: Path) -> None:
    done = plain(program, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_program_that_needs_it_is_told_what_is_missing() -> None:
    done = plain("from shoal.node.extensions import register_extensions\nregister_extensions()\n")
    assert done.returncode == 0, done.stderr
    done = plain("del sys.modules['shoal.node.diffusion']\nimport shoal.node.diffusion.server\n")
    assert install_command("digits") in done.stderr
