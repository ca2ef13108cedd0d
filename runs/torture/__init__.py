"""Everything together, broken on purpose, and judged from outside."""
