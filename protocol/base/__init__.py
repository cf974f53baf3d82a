"""What everything in Shoal builds on: ids, errors, the codec, the contract between cores and shells. Pure."""
