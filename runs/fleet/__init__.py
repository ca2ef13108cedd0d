"""Runs about replicas that come and go, and a configuration that changes."""
