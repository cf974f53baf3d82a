"""Discovery: how a peer finds the others."""
