"""The load generator: beside a programmed engine, beside another tool, and on one real vLLM."""
