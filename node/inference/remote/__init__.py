"""Experts on other peers: two processes beside the daemon, which talk to it over a Unix socket. See docs/inference.md.

asking/     in who serves a family: an expert of the ensemble that is asked of peers
answering/  in `shoal experts answer`: the experts whose files this node has, for who asks
connection  from either to its node, whose end is node/experts/proxy.py
sources     what the node says of a family's experts
rows        log-probabilities as bytes
"""
