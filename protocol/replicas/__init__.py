"""Runs without common parameters: each member holds a replica of its own, and in each round two of them exchange."""
