"""Continuous batching: writes many texts at once, token by token. sequence < batch (no clock, no thread) < engine."""
