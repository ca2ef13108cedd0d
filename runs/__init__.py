"""The runs behind the published figures. `runs/NAME.sh` measures one again; its Python is in the folder of its theme.

A run measures a table of values and ends with a verdict on it. `runs/measure/` is what all of them measure with.
"""
