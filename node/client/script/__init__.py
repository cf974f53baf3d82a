"""What a user's own training script needs to be the worker of a run: see docs/scripts.md and api.py."""
