"""How the built-in worker makes one optimizer step on one machine: in pieces that fit, and how well it uses the device.

Nothing in here is agreed with others, but which optimizer a run takes, which its manifest says.
"""
