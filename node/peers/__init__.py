"""Other nodes: how we find and reach them, and how they reach us."""
