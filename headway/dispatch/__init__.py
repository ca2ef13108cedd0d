"""Decisions for many processes: one dispatcher runs core, any number of relays carry the tokens."""
