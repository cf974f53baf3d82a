"""Peers by name: messages and calls to them, links that go up and down (network.py)."""
