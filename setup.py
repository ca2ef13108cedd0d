"""Everything is in pyproject.toml but this: with HEADWAY_COMPILE=1 the policy, the simulator and the busiest part of
the dispatcher are compiled by mypyc.

    HEADWAY_COMPILE=1 pip install .

The same source, three times as fast in the simulator; to serve, only the dispatcher of a large cell needs it. The relay
is not compiled, because that saves 3 to 10 % of the 2 µs that its own code takes per token, and no more
(docs/design/0001). Not for an editable install: Python would go on loading what was compiled and never see a change of
the source.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import setup

SIMULATED = [
    "sim/cache.py",
    "sim/cells.py",
    "sim/dispatched.py",
    "sim/dispatcher.py",
    "sim/elastic.py",
    "sim/engine.py",
    "sim/loop.py",
    "sim/messages.py",
    "sim/workload.py",
]

# What a dispatcher does for every event beside core.
DISPATCHED = ["dispatch/codec.py", "dispatch/dispatcher.py", "dispatch/link.py", "dispatch/sessions.py"]

wanted = os.environ.get("HEADWAY_COMPILE") == "1"
modules = []
if wanted and "bdist_wheel" in sys.argv:  # pip runs this file for other questions too: compile once
    from mypyc.build import mypycify

    core = sorted(str(path) for path in Path("headway/core").glob("*.py"))
    paths = ["--config-file=", "--strict", *core, *[f"headway/{name}" for name in SIMULATED + DISPATCHED]]
    modules = mypycify(paths, opt_level="1")  # with 3 it is no faster and takes twice as long to compile
# mypy reads the types of the packages that are imported.
dependencies = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
setup(ext_modules=modules, setup_requires=["mypy>=2.4", *dependencies] if wanted else [])
