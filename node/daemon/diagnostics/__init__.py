"""`shoal netcheck` (how others reach this node) and `shoal doctor PEER` (how one peer is reached): what is wrong, and
what to do about it.

Both find out facts, and decide by a list of checks:

                netcheck         doctor
facts           netcheck.py      doctor.py (peer_lookup.py: who is meant, and where that peer may be)
checks; pure    node_checks.py   peer_checks.py

answering.py is the other end of a doctor's questions: what we tell the peers that ask us. The command line prints both
for people (node/client/cli/diagnosis_lines.py).
"""
