"""The simulator: against the live gateway, its speed, and a fleet of ten thousand replicas."""
