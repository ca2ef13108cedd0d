"""The operator's console: a page at `/console`, and the figures that it polls.

The page is built from `console/` in the repository. It has no data in it; the figures need an admin key.
"""
