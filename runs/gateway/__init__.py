"""The gateway: its overhead, and leaks."""
