"""A fleet of two profiles beside fleets of one."""
