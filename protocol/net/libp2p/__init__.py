"""Corrected parts of libp2p: Noise sessions, yamux, the swarm of connections; under trio."""
