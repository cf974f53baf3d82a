"""Answering for experts: sharing (pure) < server (one expert) < process (all experts of the node)."""
