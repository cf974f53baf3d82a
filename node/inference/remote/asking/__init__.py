"""The process that asks experts on other peers: answerers, texts (both pure) < expert, as an ensemble asks it."""
