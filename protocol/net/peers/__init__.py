"""Messages and calls to peers by their PeerID, and links that go up and down (network.py)."""
