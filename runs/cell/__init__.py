"""Runs about many processes: the dispatcher and its relays."""
