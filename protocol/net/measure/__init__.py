"""What is measured and remembered of peers and paths. Pure."""
