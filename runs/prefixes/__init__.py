"""What the prefix index finds in engines' caches: simulated with a public trace, and on real vLLM."""
