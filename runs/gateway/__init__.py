"""The gateway: what it costs, and what it leaves behind."""
