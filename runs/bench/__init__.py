"""The load generator: against a scripted engine, against another tool, and on real vLLM."""
