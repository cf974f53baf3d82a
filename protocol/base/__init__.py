"""The base of everything in Shoal: ids, errors, the wire codec, the contract between cores and shells. Pure."""
