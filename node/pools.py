"""The threads of a node and of what is served, by purpose: what is slow for one reason holds up nothing else."""

from __future__ import annotations

from shoal.protocol.pool import Pool

ROUNDS = Pool("rounds", 8)  # what a round needs: sums, outer steps, hashes, vectors for the worker
RECORDS = Pool("records", 4)  # what must be on disk before we go on: votes, which runs we are in
NOTES = Pool("notes", 1)  # small files that nobody waits for, in their order: peers, timelines, today's volume
DISK = Pool("disk", 8)  # large files: checkpoints, texts, experts
SOCKETS = Pool("sockets", 1)  # where processes of this machine connect: made and removed, in their order
ANSWERS = Pool("answers", 8)  # what an answer of `shoal serve` needs
LONG = Pool("long", 8)  # what may take minutes: libraries, models, tokenizers, other people's code
