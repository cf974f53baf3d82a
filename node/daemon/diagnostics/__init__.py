"""`shoal netcheck` (how others reach this node) and `shoal doctor PEER` (how one peer is reached): what is wrong, and
what to do about it.

Each gathers facts, and pure checks decide what follows from them:

                netcheck         doctor
facts           netcheck.py      doctor.py (peer_lookup.py: which peer is meant, and where it may be)
checks; pure    node_checks.py   peer_checks.py

answering.py is the other end of a doctor's questions: what we tell peers that ask us. Both are printed for people by
node/client/cli/diagnosis_lines.py.
"""
