"""Shared by the runs: clients that time tokens, processes, verdicts, and the records of replicas."""
