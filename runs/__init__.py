"""The runs behind the published figures. `runs/NAME.sh` repeats a measurement; its Python is in a folder by theme.

A run measures its figures and ends with a verdict on them (measure/verdict.py). It exits with 0 if all bars hold, 1 if
one is missed, and 3 if the machine is too slow or too busy to judge (measure/machine.py).
"""
