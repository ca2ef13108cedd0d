"""The planner beside public measurements."""
