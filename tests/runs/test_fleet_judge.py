"""The rules by which runs/fleet.sh judges what engines, callers and books recorded."""

from __future__ import annotations

import pytest

from runs.failover.judge import Done
from runs.fleet.judge import was_cut_off

CUT = Done("node cut off", "10.87.0.11", 10.0, 14.0)


@pytest.mark.parametrize(
    ("url", "from_s", "until_s", "is_cut_off"),
    [
        pytest.param("http://10.87.0.11:9000", 9.0, 11.0, True, id="its node was cut off while it ran"),
        pytest.param("http://10.87.0.11:9000", 12.0, 20.0, True, id="it began before the node was back"),
        pytest.param("http://10.87.0.11:9000", 5.0, 9.9, False, id="it had ended"),
        pytest.param("http://10.87.0.11:9000", 14.1, 20.0, False, id="the node was back"),
        pytest.param("http://10.87.0.1:9000", 9.0, 11.0, False, id="another node, with an address that begins alike"),
    ],
)
def test_a_stream_is_cut_off_with_its_node_only(url: str, from_s: float, until_s: float, is_cut_off: bool) -> None:
    assert was_cut_off(url, from_s, until_s, [CUT]) is is_cut_off


def test_a_killed_engine_cuts_nothing_off() -> None:
    killed = Done("engine killed", "http://10.87.0.11:9000", 10.0, 10.0)
    assert not was_cut_off(killed.who, 9.0, 11.0, [killed])
