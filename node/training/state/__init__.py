"""What a member of a run holds: vectors, their layout, how they are stepped, and how they are kept."""
