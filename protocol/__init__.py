"""What peers say to each other: wire types, codec, transport, membership, rounds, state transfer."""
