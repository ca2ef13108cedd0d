"""Keys: lookup by hash, expiry, the signed copy on disk; and the commands about money."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli import app
from headway.errors import SetupError
from headway.ledger.keys import Key, KeyCache, KeyTable, cache_salt, key_hash, read_secret
from headway.ledger.opening import open_store
from tests.ledger.test_store import whole_call

CONFIG = """\
[ledger]
store = "{store}"
spool = "{spool}"
[[models]]
name = "m"
price = {{ input = 1.0, output = 2.0, replica_hour = 3600.0 }}
[[models.tiers]]
name = "standard"
[[models.tiers]]
name = "fast"
floor_tps = 10.0
[[models.replicas]]
url = "http://127.0.0.1:1"
curve = [[1, 20.0]]
"""


def test_a_table_follows_changes() -> None:
    table = KeyTable()
    table.take([Key(id="a", hash="1", version=1), Key(id="b", hash="2", version=2)], 10)
    assert (table.find("1", 0), table.find("3", 0)) == (Key(id="a", hash="1", version=1), None)
    table.take([Key(id="a", hash="3", old_hash="1", old_hash_until_us=50, version=3)], 20)
    assert [table.find(hashed, 40) is not None for hashed in ("1", "3")] == [True, True]
    assert [table.find(hashed, 60) is not None for hashed in ("1", "3")] == [False, True]
    table.take([Key(id="a", hash="3", revoked_us=70, version=4)], 30)
    assert [table.find("3", now) is not None for now in (69, 70)] == [True, False]
    assert table.find("1", 40) is None
    assert (table.version, table.as_of_us) == (4, 30)


def test_a_revoked_key_is_refused_by_a_gateway_whose_clock_is_behind(tmp_path: Path) -> None:
    hour_us = 3_600_000_000
    table, secret = KeyTable(), read_secret(tmp_path / "secret")
    rotated = Key(id="b", hash="2", old_hash="3", old_hash_until_us=10 * hour_us + 50)
    table.take([Key(id="a", hash="1", revoked_us=10 * hour_us), rotated], 9 * hour_us, 10 * hour_us + 10)
    KeyCache(tmp_path / "keys", secret).save(table)
    after_a_restart = KeyTable()
    KeyCache(tmp_path / "keys", secret).load(after_a_restart)
    for one in (table, after_a_restart):
        for now in (8 * hour_us, 9 * hour_us, 9 * hour_us + 30):  # the store's clock is one hour ahead, or more
            assert one.find("1", now) is None
            assert one.find("3", now) is not None
        assert one.find("3", 9 * hour_us + 40) is None, "the old secret ends by the store's clock"


@pytest.mark.parametrize("content", [b"", b"\n", b"31 bytes are not enough, really."])
def test_a_short_secret_is_refused_and_it_says_how_to_make_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content[:31])
    with pytest.raises(SetupError, match=f"openssl rand -hex 32 > {path}"):
        read_secret(path)
    path.write_bytes(b"x" * 32 + b"\n")
    assert read_secret(path) == b"x" * 32


def test_gateways_that_make_the_secret_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(read_secret, [tmp_path / "secret"] * 64))
    assert len(secrets) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_copy_on_the_disk_is_believed_only_with_its_signature(tmp_path: Path) -> None:
    table = KeyTable()
    table.take([Key(id="a", hash="1", version=7)], 10)
    path = tmp_path / "keys"
    secret = read_secret(tmp_path / "secret")
    assert read_secret(tmp_path / "secret") == secret
    assert ((tmp_path / "secret").stat().st_mode & 0o777) == 0o600
    KeyCache(path, secret).save(table)
    again, forged, other, none = KeyTable(), KeyTable(), KeyTable(), KeyTable()
    KeyCache(path, secret).load(again)
    assert (again.all(), again.as_of_us, again.version) == (table.all(), 10, 7)
    KeyCache(path, b"another secret").load(other)
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
    KeyCache(path, secret).load(forged)
    KeyCache(tmp_path / "absent", secret).load(none)
    assert [one.all() for one in (other, forged, none)] == [[], [], []]


def test_tenants_have_salts_of_their_own() -> None:
    salts = {cache_salt(secret, tenant) for secret in (b"x", b"y") for tenant in ("a", "b")}
    assert len(salts) == 4


def test_the_commands_about_money(tmp_path: Path, store_url: str) -> None:
    config = tmp_path / "headway.toml"
    config.write_text(CONFIG.format(store=store_url, spool=tmp_path / "spool"))

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--config", str(config)])
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.output

    made = run("keys", "create", "--name", "team", "--tier", "fast", "--default-tier", "fast", "--budget-day", "1.5")
    key_id, secret = made.split(":")[0], made.split()[-1]
    store = open_store(store_url)
    [key] = store.keys_since(0)
    assert (key.id, key.hash, key.tiers, key.budget_day) == (key_id, key_hash(secret.encode()), ["fast"], 1_500_000)
    assert secret not in key.hash
    assert key.default_tier == "fast"
    new_secret = run("keys", "rotate", key_id, "--keep-old-hours", "1").split()[-1]
    [key] = store.keys_since(0)
    assert (key.hash, key.old_hash) == (key_hash(new_secret.encode()), key_hash(secret.encode()))
    run("keys", "revoke", key_id)
    assert "revoked" in run("keys", "list")
    store.insert(whole_call())
    store.close()
    assert "0.000300" in run("bill", "--since", "2026-11-01", "--by", "key")
    assert run("bill", "--since", "2026-11-01", "--format", "csv").startswith("key,model,tier,calls")
    assert '"c1:2:served"' in run("bill", "--since", "2026-11-01", "--format", "cloudevents")
    assert "The ledger is consistent." in run("ledger", "verify")
    assert "up to date" in run("ledger", "migrate")
    (tmp_path / "spool" / "bad").mkdir(parents=True)
    (tmp_path / "spool" / "bad" / "000000000001.jsonl").write_bytes(b"0 x\n17 y\n")
    bad = CliRunner().invoke(app, ["ledger", "verify", "--config", str(config)])
    assert bad.exit_code == 1
    assert "2 lines of the spool could not be read" in bad.output.replace("\n", " ")
    wrong = CliRunner().invoke(app, ["keys", "create", "--tier", "warp", "--config", str(config)])
    assert "there is no tier 'warp' in the configuration" in str(wrong.exception)
    words = ["keys", "create", "--tier", "standard", "--default-tier", "fast", "--config", str(config)]
    assert "may not use its default tier 'fast'. It may use: standard." in str(CliRunner().invoke(app, words).exception)


def test_a_key_may_be_for_an_auto_model(tmp_path: Path) -> None:
    config, url = tmp_path / "headway.toml", f"sqlite:///{tmp_path}/books.db"
    auto = '[models.auto]\ncalibration = "auto.json"\nstudent = "s"\n[[models]]\nname = "s"\nreplicas_of = "m"\n'
    config.write_text(CONFIG.format(store=url, spool=tmp_path / "spool") + auto)

    def create(model: str) -> Result:
        return CliRunner().invoke(app, ["keys", "create", "--model", model, "--config", str(config)])

    assert create("m-auto").exit_code == 0
    store = open_store(url)
    assert [key.models for key in store.keys_since(0)] == [["m-auto"]]
    store.close()
    assert "there is no model 's-auto' in the configuration. Known: m, s, m-auto." in str(create("s-auto").exception)
