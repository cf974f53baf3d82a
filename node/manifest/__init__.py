"""What a run's manifest says, and what follows from it: tables, their checks, and the canonical bytes."""
