"""Streams that go on at another engine, on real vLLM."""
