"""Optimizer steps of the built-in worker on one machine: in pieces that fit, and how well they use the device.

Members need not agree on anything in here except the optimizer, which the manifest names.
"""
