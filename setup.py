"""Everything is in pyproject.toml but this: with HEADWAY_COMPILE=1 the policy and the simulator are compiled by mypyc.

    HEADWAY_COMPILE=1 pip install .

The same source, three times as fast in the simulator; the gateway does not need it. Not for an editable install: Python
would go on loading what was compiled and never see a change of the source.
"""

import os
from pathlib import Path

from setuptools import setup

SIMULATED = ["sim/cell.py", "sim/engine.py", "sim/loop.py", "sim/workload.py"]

wanted = os.environ.get("HEADWAY_COMPILE") == "1"
modules = []
if wanted:
    try:
        from mypyc.build import mypycify
    except ImportError:
        pass  # the first pass, in which pip asks what is needed to build
    else:
        core = sorted(str(path) for path in Path("headway/core").glob("*.py"))
        modules = mypycify(["--config-file=", "--strict", *core, *[f"headway/{name}" for name in SIMULATED]])
setup(ext_modules=modules, setup_requires=["mypy>=2.4"] if wanted else [])
