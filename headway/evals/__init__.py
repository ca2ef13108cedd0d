"""Counts mistakes: tasks with known answers, and the verdict on what a model did with them."""
