"""Training methods: what a member contributes to a round and how it applies the answer."""
