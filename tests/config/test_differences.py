"""What differs between two configurations, and what of it a running gateway takes over."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import Config
from headway.config.differences import differences, without_restart
from headway.errors import SetupError

REPLICA = {"url": "http://10.0.0.1:8000", "seats": 8, "curve": [[1, 100.0], [8, 50.0]]}
FAST = {"name": "fast", "floor_tps": 60.0}


def config(*models: dict[str, Any], **tables: Any) -> Config:
    listed = list(models) or [{"name": "m", "replicas": [REPLICA]}]
    return Config.model_validate({"models": listed, **tables})


def model(**settings: Any) -> dict[str, Any]:
    return {"name": "m", "replicas": [REPLICA], **settings}


def shown(before: Config, after: Config) -> list[str]:
    return [str(one) for one in differences(before, after)]


def test_nothing_differs_from_itself() -> None:
    assert shown(config(), config()) == []


def test_each_difference_is_named_by_its_tables() -> None:
    before = config(model(tiers=[{"name": "standard"}, FAST]))
    after = config(
        model(
            tiers=[{"name": "standard", "max_held": 5}, FAST | {"floor_tps": 70.0}],
            replicas=[REPLICA | {"seats": 16}, {"url": "http://10.0.0.2:8000", "seats": 4}],
        ),
        {"name": "n", "replicas": [{"url": "http://10.0.0.3:8000", "seats": 4}]},
    )
    assert shown(before, after) == [
        "models.m.tiers.standard.max_held: 1000 -> 5",
        "models.m.tiers.fast.floor_tps: 60.0 -> 70.0",
        "models.m.replicas.http://10.0.0.1:8000.seats: 8 -> 16",
        "models.m.replicas.http://10.0.0.2:8000 added",
        "models.n added",
    ]
    assert "models.n removed" in shown(after, before)


def test_what_needs_a_restart_is_said_and_stays() -> None:
    before = config(gateway={"port": 8000})
    after = config(gateway={"port": 9000, "unknown_fields": "refuse"})
    assert shown(before, after) == [
        "gateway.port: 8000 -> 9000 (takes effect after a restart)",
        "gateway.unknown_fields: 'ignore' -> 'refuse'",
    ]
    served = without_restart(before, after)
    assert (served.gateway.port, served.gateway.unknown_fields) == (8000, "refuse")


def test_keys_and_passwords_are_not_shown() -> None:
    ledger = {"store": "postgresql://me:first@db/ledger"}
    said = "\n".join(
        shown(
            config(gateway={"key_hashes": ["a" * 64]}, ledger=ledger),
            config(gateway={"key_hashes": ["b" * 64]}, ledger=ledger | {"store": "postgresql://me:second@db/ledger"}),
        )
    )
    assert "gateway.key_hashes" in said
    assert "***@db" in said
    assert not any(secret in said for secret in ("aaaa", "bbbb", "first", "second"))


def test_a_model_that_an_auto_model_needs_stays() -> None:
    auto = {"budget": 0.02, "calibration": "auto.json"}
    student = {"name": "m-spark", "replicas": [{"url": "http://10.0.0.4:8000", "seats": 4}]}
    before = config(model(auto=auto), student)
    with pytest.raises(SetupError, match="m-spark"):
        without_restart(before, config(model()))
    with pytest.raises(SetupError, match=r"models\.auto"):
        without_restart(before, config(student))
    served = without_restart(before, config(model(), student))
    assert served.models[0].auto is not None, "turning it off needs a restart"


def test_an_auto_model_that_is_added_needs_a_restart() -> None:
    auto = {"budget": 0.02, "calibration": "auto.json"}
    student = {"name": "m-spark", "replicas": [{"url": "http://10.0.0.4:8000", "seats": 4}]}
    served = without_restart(config(), config(model(auto=auto), student))
    assert [one.name for one in served.models] == ["m", "m-spark"]
    assert served.models[0].auto is None
