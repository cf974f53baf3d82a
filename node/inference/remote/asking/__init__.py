"""Asking experts on other peers: answerers, texts (both pure) < expert, which an ensemble calls."""
