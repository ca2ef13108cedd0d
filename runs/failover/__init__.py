"""Faults in a cell of several processes, and what they must not do."""
