"""headway.toml: what is accepted, and that each problem is reported with its line and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.config import load
from headway.config.to_core import replica_of
from headway.deciding import decide_here
from headway.errors import SetupError
from headway.run import make_gateway

GOOD = """\
[gateway]
port = 8080

[[models]]
name = "small"

[[models.replicas]]
url = "http://127.0.0.1:8001"
seats = 8

[[models.replicas]]
url = "http://127.0.0.1:8002/"

[[models]]
name = "large"
tiers = [{ name = "standard", max_hold_s = 5.0 }]

[[models.replicas]]
url = "https://engine.internal"
"""


def complaint(tmp_path: Path, text: str) -> str:
    path = tmp_path / "headway.toml"
    path.write_text(text)
    with pytest.raises(SetupError) as refused:
        load(path)
    return refused.value.message.replace(str(path), "headway.toml")


def test_a_good_configuration(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(GOOD)
    config = load(path)
    assert [model.name for model in config.models] == ["small", "large"]
    assert [replica.url for replica in config.models[0].replicas] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert config.models[0].replicas[0].seats == 8
    assert config.models[0].tiers[0].name == "standard"
    assert config.models[1].tiers[0].max_hold_s == 5.0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("port = 8080", "port = 99999", "headway.toml:2: gateway.port = 99999: Input should be less than or equal to 65535"),
        ("port = 8080", "prot = 8080", "headway.toml:2: unknown setting `gateway.prot`: did you mean `port`?"),
        ("seats = 8", "seats = 0", "headway.toml:9: models.replicas.seats = 0:"),
        ("seats = 8", 'seats = "8"', "headway.toml:9: models.replicas.seats = '8': Input should be a valid integer"),
        ('url = "http://127.0.0.1:8002/"', 'url = "127.0.0.1:8002"', 'headway.toml:12: models.replicas.url: must look like'),
        ('url = "http://127.0.0.1:8002/"', "seats = 3", "headway.toml:11: `models.replicas.url` is missing: Base URL of the server"),
        ("seats = 8", 'seats = 8\ncurve = [["1", 120.0]]', "models.replicas.curve: must look like [[1, 120.0]"),
        ("seats = 8", 'seats = 8\ncurve = [[1, []]]', "models.replicas.curve: must look like [[1, 120.0]"),
        ("seats = 8", 'seats = 8\ncurve = [[1, "120"]]', "models.replicas.curve: must look like [[1, 120.0]"),
        ("seats = 8", 'seats = 8\ncurve = [[1, nan]]', "models.replicas.curve: must look like [[1, 120.0]"),
        ('name = "large"', 'name = "small"', "headway.toml:1: model 'small' is configured 2 times: keep one"),
        ("port = 8080", 'host = "0.0.0.0"', "there are no keys: set host = \"127.0.0.1\", add key_hashes"),
        ("port = 8080", 'key_hashes = ["secret"]', "headway.toml:2: gateway.key_hashes = 'secret'"),
        ('name = "standard"', 'name = "warp"', "headway.toml:16: models.tiers.name = 'warp': Input should be 'ultrafast', 'fast', 'standard' or 'flex'"),
        ('name = "standard"', 'name = "fast"', "tier 'fast' needs a floor: set one, for example floor_tps = 40.0"),
        ("max_hold_s = 5.0", "floor_tps = 9.0", "tier 'standard' cannot have a floor: remove floor_tps"),
        ("max_hold_s = 5.0", "target_tps = 9.0", "target_tps = 9 needs a floor that is not above it"),
        ("seats = 8", "curve = [[1, 9.0], [1, 8.0, 0]]", "models.replicas.curve: must look like [[1, 120.0]"),
        ("seats = 8", "curve = [[1, 9.0, 4000]]", "models.replicas.curve: must look like [[1, 120.0]"),
        ("seats = 8", "curve = [[1, 0]]", "headway.toml:9: models.replicas.curve: must look like [[1, 120.0]"),
        ("{ name =", '{ name = "fast", floor_tps = 9.0 }, { name =', "measure one with `headway calibrate URL`"),
        ("[gateway]", "[gateway", "headway.toml: not valid TOML:"),
        ('name = "small"', 'name = "small"\nreplicas_of = "large"', "needs either [[models.replicas]] or [models.discover], or else replicas_of"),
        ('name = "large"', 'name = "other"\n[[models]]\nname = "large"', "needs either [[models.replicas]] or [models.discover], or else replicas_of"),
        ('name = "large"', 'name = "large"\nembeddings = true\nkeep_prompts = { file = "x" }', "remove [models.keep_prompts]"),
        ('name = "large"', 'name = "large"\nauto = { calibration = "x" }\nembeddings = true', "remove [models.auto]"),
        ('name = "large"', 'name = "large"\nimages = true\nembeddings = true', "made of text: remove `images`"),
        ("tiers = [", 'embeddings = true\ntiers = [{ name = "flex" }, ', "standard only: remove other tiers"),
        ('name = "small"', 'name = "a"\nreplicas_of = "small"\nembeddings = true\n[[models]]\nname = "small"', "set `embeddings` alike on both"),
        ('name = "small"', 'name = "x"\nauto = { calibration = "c", student = "small" }\nreplicas_of = "large"\n[[models]]\nname = "small"\nembeddings = true', "not another configured model that generates text"),
        ('name = "large"', 'name = "adapter"\nreplicas_of = "none"\n[[models]]\nname = "large"', "uses the replicas of 'none', which is not"),
        ('name = "large"', 'name = "large"\naliases = ["small"]', "model or alias 'small' is configured 2 times: keep one"),
        ('name = "large"', 'name = "large"\naliases = ["x", "x"]', "model or alias 'x' is configured 2 times: keep one"),
        ('name = "large"', 'name = "large"\naliases = ["c-*", "c-*"]', "model or alias 'c-*' is configured 2 times: keep one"),
        ('name = "large"', 'name = "large"\naliases = ["small-fast"]', "alias 'small-fast' already stands for the model 'small' at the tier 'fast'"),
        ('name = "large"', 'name = "large"\naliases = ["x", "x-flex"]', "alias 'x-flex' already stands for the model 'x' at the tier 'flex'"),
        ('name = "large"', 'name = "large"\naliases = ["c-*-x"]', "headway.toml:16: models.aliases = 'c-*-x': String should match pattern"),
        ('name = "large"', 'name = "large"\naliases = [""]', "headway.toml:16: models.aliases = ''"),
        ('name = "large"', 'name = "large"\naliases = ["a b"]', "headway.toml:16: models.aliases = 'a b'"),
        ('name = "large"', f'name = "large"\naliases = {[str(n) for n in range(65)]}', "List should have at most 64 items"),
        ('name = "large"', 'name = "large"\nmax_model_len = 0', "headway.toml:16: models.max_model_len = 0"),
        ("port = 8080", 'cors_origins = ["*"]', 'gateway.cors_origins "*" lets every web page call, and there are no keys'),
        ("port = 8080", 'cors_origins = ["chat.example.com"]', "headway.toml:2: gateway.cors_origins = 'chat.example.com'"),
        ("port = 8080", 'cors_origins = ["https://a.example/"]', "headway.toml:2: gateway.cors_origins = 'https://a.example/'"),
        ("port = 8080", 'cors_origins = ["https://*.example"]', "headway.toml:2: gateway.cors_origins = 'https://*.example'"),
        ("port = 8080", 'cors_origins = ["null"]', "headway.toml:2: gateway.cors_origins = 'null'"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_line_and_a_fix(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert said in complaint(tmp_path, GOOD.replace(before, after, 1))


def test_an_alias_may_be_a_wildcard_and_wildcards_may_overlap(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    large = 'name = "large"\naliases = ["gpt-4o", "claude-*", "*"]\nmax_model_len = 32768'
    path.write_text(GOOD.replace('name = "large"', large).replace('name = "small"', 'name = "small"\naliases = ["c*"]'))
    assert [model.aliases for model in load(path).models] == [["c*"], ["gpt-4o", "claude-*", "*"]]


def test_a_point_with_a_third_number_has_a_long_context(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(GOOD.replace("seats = 8", "seats = 8\ncurve = [[1, 100.0], [8, 50], [8, 40.0, 4000]]"))
    [small, _] = load(path).models
    curve = replica_of(small, small.replicas[0], "r0").curve
    assert curve is not None
    assert curve.seconds_per_token(8) == pytest.approx(1 / 50)
    assert curve.seconds_per_token(8, 8 * 4000) == pytest.approx(1 / 40)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    assert len(complaint(tmp_path, GOOD.replace("8080", "-1").replace("seats = 8", "seats = -8")).splitlines()) == 2


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--config"):
        load(tmp_path / "none.toml")


def test_beyond_loopback_keys_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(GOOD.replace("port = 8080", f'host = "0.0.0.0"\nkey_hashes = ["{"a" * 64}"]'))
    assert load(path).gateway.host == "0.0.0.0"


def test_models_can_share_replicas(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(GOOD + '\n[[models]]\nname = "adapter"\nreplicas_of = "small"\n')
    config = load(path)
    assert config.models[2].replicas == []
    gateway = make_gateway(config, decide_here(config))
    assert list(gateway.machine.pools) == ["small", "large"]
    assert gateway.machine.pool_of("adapter") is gateway.machine.pools["small"]


@pytest.mark.parametrize(
    "table",
    [
        '[ledger]\nstore = "postgress://user:CANARY@host/books"\n',
        '[ledger]\nstore = "postgresql//user:CANARY@host/books"\n',
        '[ledger]\nstore = "host=h password=CANARY"\n',
        '[[ledger]]\nstore = "postgresql://user:CAN@ARY@host/books"\n',
        '[ledger]\nstore = "sqlite:///books.db"\nspool_bytes = "http://user:CANARY@host"\n',
    ],
)
def test_a_complaint_does_not_show_a_password(tmp_path: Path, table: str) -> None:
    said = complaint(tmp_path, GOOD + table)
    assert "ledger" in said
    assert "CAN" not in said
    assert "ARY" not in said
