"""The network shells: libp2p, sockets and threads, up to messages to peers by name (peers/network.py)."""
