"""Real vLLM engines: long prompts and speculation."""
