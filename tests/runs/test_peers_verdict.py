"""The verdict of runs/peers.sh on tables that pass and tables that fail."""

from __future__ import annotations

from dataclasses import replace

from runs.peers.standings import FirstToken, Relay, Rounds, Row, standings, verdict


def row(gateway: str, *, added_ms: float, cpu_us: float) -> Row:
    """Three rounds around these figures."""

    def around(middle: float) -> Rounds:
        return (0.9 * middle, middle, 1.2 * middle)

    first = FirstToken(around(added_ms), around(5 * added_ms), around(0.1))
    return Row(
        gateway, first, first, Relay(around(5 * cpu_us), (400.0,), (0.1,)), Relay(around(cpu_us), (3e4,), (0.5,))
    )


HEADWAY = row("Headway", added_ms=0.72, cpu_us=12.5)
LITELLM = row("LiteLLM", added_ms=15.7, cpu_us=846.0)
OTHERS = [
    row("HAProxy", added_ms=0.12, cpu_us=8.3),
    row("vllm-router", added_ms=0.85, cpu_us=13.5),
    row("smg", added_ms=0.60, cpu_us=15.9),
]


def missed(table: list[Row]) -> list[str]:
    return [bar.what for bar in verdict(table).bars if not bar.holds]


def test_a_table_within_all_bars_passes_whoever_leads() -> None:
    bars = verdict([HEADWAY, *OTHERS, LITELLM]).bars
    beside_litellm, beside_rust = ["1/21.8", "1/21.8", "1/67.7", "1/67.7"], ["0.93 (vllm-router)"] * 2
    assert [bar.measured for bar in bars] == ["all", *beside_litellm, *beside_rust, "15.70 ÷ 15.70 ms"]
    assert all(bar.holds for bar in bars)


def test_more_than_a_fifth_of_litellms_first_token_fails() -> None:
    slow = row("Headway", added_ms=3.2, cpu_us=12.5)
    assert missed([slow, *OTHERS, LITELLM]) == [
        "added first token p50, one call at a time, Headway ÷ LiteLLM",
        "added first token p50, Poisson, Headway ÷ LiteLLM",
    ]


def test_more_than_a_fifteenth_of_litellms_cpu_fails() -> None:
    costly = row("Headway", added_ms=0.72, cpu_us=57.0)
    assert missed([costly, *OTHERS, LITELLM]) == [
        "CPU per token, 8 slow streams, Headway ÷ LiteLLM",
        "CPU per token, 64 fast streams, Headway ÷ LiteLLM",
        "CPU per token, 8 slow streams, Headway ÷ the better Rust router",
        "CPU per token, 64 fast streams, Headway ÷ the better Rust router",
    ]


def test_more_cpu_than_the_better_rust_router_fails_at_either_load() -> None:
    slow, full = Relay((67.6,), (400.0,), (0.1,)), Relay((13.6,), (3e4,), (0.5,))
    for costly, load in ((replace(HEADWAY, slow=slow), "8 slow"), (replace(HEADWAY, full=full), "64 fast")):
        assert missed([costly, *OTHERS, LITELLM]) == [
            f"CPU per token, {load} streams, Headway ÷ the better Rust router"
        ]


def test_one_measure_alone_can_fail() -> None:
    costly = replace(HEADWAY, slow=Relay((300.0,), (400.0,), (0.1,)))
    assert missed([costly, *OTHERS, LITELLM]) == [
        "CPU per token, 8 slow streams, Headway ÷ LiteLLM",
        "CPU per token, 8 slow streams, Headway ÷ the better Rust router",
    ]


def test_an_added_time_below_nothing_is_noise_and_fails() -> None:
    noisy = row("Headway", added_ms=-0.1, cpu_us=12.5)
    bars = {bar.what: bar for bar in verdict([noisy, *OTHERS, LITELLM]).bars}
    bar = bars["added first token p50, Poisson, Headway ÷ LiteLLM"]
    assert (bar.measured, bar.holds) == ("-0.10 ms", False)


def test_a_row_that_is_missing_or_has_no_rounds_fails() -> None:
    empty = replace(OTHERS[0], full=Relay((), (), ()))
    for table in ([HEADWAY, *OTHERS[1:], LITELLM], [HEADWAY, empty, *OTHERS[1:], LITELLM]):
        bar = verdict(table).bars[0]
        assert (bar.measured, bar.holds) == ("missing: HAProxy", False)
    assert missed([]) == ["a row for each gateway"]
    assert missed([HEADWAY, *OTHERS]) == ["a row for each gateway"]


def test_a_machine_so_slow_that_litellm_queues_fails() -> None:
    queueing = replace(LITELLM, half_load=FirstToken((3587.0,), (6566.0,), (0.24,)))
    bar = verdict([HEADWAY, *OTHERS, queueing]).bars[-1]
    assert (bar.measured, bar.holds) == ("3587.00 ÷ 15.70 ms", False)


def test_standings_name_the_leader_even_where_it_is_a_peer() -> None:
    lines = standings([HEADWAY, *OTHERS, LITELLM])
    assert lines[1] == (
        "added first token p50, Poisson, ms: 1. HAProxy 0.12, 2. smg 0.60, 3. Headway 0.72, 4. vllm-router 0.85, 5. LiteLLM 15.70"
    )
    assert lines[4] == (
        "CPU per token, 64 fast streams, µs: 1. HAProxy 8.3, 2. Headway 12.5, 3. vllm-router 13.5, 4. smg 15.9, 5. LiteLLM 846.0"
    )


def test_the_figures_end_with_the_goal_beside_haproxy() -> None:
    assert verdict([HEADWAY, *OTHERS, LITELLM]).figure.splitlines()[-1] == (
        "CPU per token, 64 fast streams, Headway ÷ HAProxy: 1.51 (goal 1.5)"
    )
