"""`shoal up`: a whole swarm on this machine, from nothing to a verdict.

It is an ordinary client: it starts daemons, talks to their HTTP APIs and reads what they write. In the order of
what happens: plan, stage (peers, swarm), finish (jobs, baseline_run), verdict, summary.
"""

from __future__ import annotations

from shoal.node.client.up.orchestrate import main

__all__ = ["main"]
