"""Replacements for parts of libp2p, under trio: Noise sessions, yamux, the swarm of connections."""
