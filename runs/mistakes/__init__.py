"""Mistakes: every speed with its mistakes on real models, and the mistake budget of the auto tier."""
