"""Hostile input: fuzzed parsers, a hostile engine and hostile clients."""
