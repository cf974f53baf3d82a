"""The state of a member of a run: its vectors and chunks, the outer step, and its file."""
