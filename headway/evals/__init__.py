"""Counts mistakes: asks models tasks with known answers, judges the answers, and recommends when to use which speed."""
