"""Circuit relay v2: a public peer forwards, within limits, the traffic of two others that cannot dial each other.

https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md. We do not use libp2p's implementation: it keeps one
circuit for each listener, so that one dialler that hangs up cuts off all others, and has no rate limit.
"""
