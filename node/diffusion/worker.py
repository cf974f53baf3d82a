"""The worker of a run about pictures: the built-in one (node/worker/worker.py), which knows their models and data.

python -m shoal.node.diffusion.worker --socket PATH
"""

from __future__ import annotations

from shoal.node.base.extensions import register
from shoal.node.diffusion.extension import EXTENSION, NAMES
from shoal.node.worker.worker import main

if __name__ == "__main__":
    register(NAMES, lambda: EXTENSION)
    main()
