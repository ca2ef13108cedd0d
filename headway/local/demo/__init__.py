"""`headway demo`: real vLLM engines behind a real gateway, a race of fast against standard, and calls to paste.

engines.py   which engines this machine runs: two on its CPU, or one on each of its first two GPUs
progress.py  the numbered steps on the console
speed.py     how fast the engines are: measured once, and kept
offer.py     measured speeds -> the tiers, their floor and their price; the configuration
calls.py     the calls to paste
run.py       the order of the steps, and their end
"""
