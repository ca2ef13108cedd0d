"""What the runs measure with: clients that time tokens, processes to start, and what replicas record."""
