"""Real clients, unchanged, in front of an engine that answers as programmed."""
