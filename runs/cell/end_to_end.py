"""The end-to-end tests with several relays in each gateway. See runs/e2e-relays.sh.

The tests are those of `make e2e`; an environment variable makes their fixtures start `headway serve --relays 2`
(tests/e2e/conftest.py). Whether they do is watched here, where they start processes.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from rich.console import Console

from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
RELAYS = 2
GATEWAYS = {"gateway", "books", "seeing", "auto_url"}  # fixtures that are a gateway; a few tests start one themselves
OPTIONS = ("-q", "-m", "engine", "--timeout", "600", "tests/e2e")


@dataclass(frozen=True)
class Figures:
    collected: int
    outcomes: Counter[str]  # passed, failed or skipped; tests that did not run are in none of them
    through: int  # tests that passed and use a gateway: others ask only an engine
    with_relays: int  # gateways that were started
    without_relays: int


class Watch:
    """A plugin of pytest: counts tests by their outcome, and the gateways that they start."""

    def __init__(self) -> None:
        self.collected = 0
        self.outcomes: dict[str, str] = {}  # by test
        self.gateways: Counter[bool] = Counter()  # by whether they have relays
        self._running = ""
        self._through: set[str] = set()

    def on_audit(self, event: str, values: tuple[object, ...]) -> None:
        if event != "subprocess.Popen":
            return
        command = values[1]
        if isinstance(command, Sequence) and tuple(command[1:4]) == ("-m", "headway", "serve"):
            self.gateways[tuple(command[-2:]) == ("--relays", str(RELAYS))] += 1
            self._through.add(self._running)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = len(session.items)
        used = {item.nodeid for item in session.items if GATEWAYS & set(getattr(item, "fixturenames", ()))}
        self._through |= used

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed if its set-up, itself and its tear-down have."""
        if report.when == "call" or not report.passed:
            before = self.outcomes.get(report.nodeid, "passed")
            self.outcomes[report.nodeid] = before if before != "passed" else report.outcome

    def figures(self) -> Figures:
        outcomes = Counter(self.outcomes.values())
        through = sum(self.outcomes.get(nodeid) == "passed" for nodeid in self._through)
        return Figures(self.collected, outcomes, through, self.gateways[True], self.gateways[False])


def verdict(figures: Figures) -> Verdict:
    passed, failed = figures.outcomes["passed"], figures.outcomes["failed"]
    bars = (
        none_of("tests that failed", failed),
        none_of("tests that were skipped or did not run", figures.collected - passed - failed),
        at_least("tests that passed and use a gateway", figures.through, 1, "d"),
        none_of("gateways that were started without relays", figures.without_relays),
        at_least("gateways that were started with relays", figures.with_relays, 1, "d"),
    )
    figure = (
        f"{passed} of {figures.collected} end-to-end tests on vLLM pass with --relays {RELAYS}, {figures.through} of "
        f"them through one of {figures.with_relays} gateways, the others on engines alone"
    )
    return Verdict(figure, bars)


def main(arguments: Sequence[str]) -> int:
    os.environ["HEADWAY_RELAYS"] = str(RELAYS)
    watch = Watch()
    sys.addaudithook(watch.on_audit)
    code = pytest.main([*OPTIONS, *arguments], plugins=[watch])
    return finish(console, verdict(watch.figures())) or int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
