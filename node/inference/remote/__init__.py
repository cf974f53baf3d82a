"""Experts on other peers: two processes beside the daemon, which talk to it over a Unix socket. See docs/inference.md.

asking/     in the process that serves a family: an expert of the ensemble that peers answer for
answering/  `shoal experts answer`: answers peers' questions to the experts whose files this node has
connection  the connection of either process to its node; the node's end is node/experts/proxy.py
sources     reads what the node says of a family's experts
rows        encodes log-probabilities as bytes
"""
