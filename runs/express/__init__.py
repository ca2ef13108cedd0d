"""The express rule: in virtual time, on a live gateway, and on real vLLM."""
