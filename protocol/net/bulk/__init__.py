"""Payloads on their way from peer to peer: by sockets of their own where that can be, else by libp2p's streams."""
