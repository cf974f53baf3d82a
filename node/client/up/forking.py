"""The program of the fork server of `shoal up`: imports what nodes, workers and jobs need, and forks itself for them.

python -m shoal.node.client.up.forking LISTENER      LISTENER is the descriptor of its socket
"""

from __future__ import annotations

import shoal.node.daemon.daemon  # noqa: F401  a node imports it late, so that the command line need not
from shoal.node.base.fork_server import Programs, serve
from shoal.node.client import cli
from shoal.node.client.up import job
from shoal.node.worker import worker

PROGRAMS: Programs = {
    "shoal.node": cli.main,
    "shoal.node.client.up.job": job.main,
    "shoal.node.worker.worker": worker.main,
}

if __name__ == "__main__":
    serve(PROGRAMS)
