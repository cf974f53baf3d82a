"""What can be trained: each kind of model that a manifest may name, behind one interface (kind.py, registry.py)."""
