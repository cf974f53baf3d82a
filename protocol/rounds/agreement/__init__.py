"""What follows from signed words alone: groups, quorums, votes, proofs, the chain of certificates. Pure."""
