"""Profiles in headway.toml: what replicas have from theirs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.config import Config, as_text, from_text, load, parse
from headway.config.differences import differences
from headway.config.to_core import replica_of
from headway.errors import SetupError

DRAFTER = """\
[[models]]
name = "m"
tiers = [{ name = "standard" }, { name = "fast", floor_tps = 60.0 }]

[[models.profiles]]
name = "drafter"
seats = 16
curve = [[1, 200.0], [16, 50.0]]
prompt_tps = 9000.0

[models.profiles.speculation]
method = "draft_model"
drafter = "some/drafter"

[[models.replicas]]
url = "http://127.0.0.1:8001"
profile = "drafter"

[[models.replicas]]
url = "http://127.0.0.1:8002"
profile = "drafter"
seats = 8
curve = [[1, 180.0], [8, 90.0]]

[[models.replicas]]
url = "http://127.0.0.1:8003"
"""


def read(text: str) -> Config:
    return parse(text, "headway.toml")


def test_a_replica_has_from_its_profile_what_it_has_not_itself() -> None:
    [model] = read(DRAFTER).models
    of_profile, own, other = (replica_of(model, one, one.url) for one in model.replicas)
    assert (of_profile.seats, of_profile.prompt_tps) == (16, 9000.0)
    assert of_profile.curve is not None
    assert of_profile.curve.speed_tps(1) == pytest.approx(200.0)
    assert (own.seats, own.prompt_tps) == (8, 9000.0)
    assert own.curve is not None
    assert own.curve.speed_tps(1) == pytest.approx(180.0)
    assert (other.seats, other.prompt_tps, other.curve) == (64, 0.0, None)


def test_engines_that_are_found_have_a_profile_too() -> None:
    text = DRAFTER[: DRAFTER.index("[[models.replicas]]")]
    found = read(text + '[models.discover]\nregistered = true\nprofile = "drafter"\n').models[0].discover
    assert found is not None
    assert (found.seats, found.prompt_tps) == (16, 9000.0)
    with pytest.raises(SetupError, match=r"toml:17: models\.discover\.profile: 'draft' is no profile of the model"):
        read(text + '[models.discover]\nregistered = true\nprofile = "draft"\n')


def test_another_process_reads_the_same_configuration() -> None:
    assert from_text(as_text(read(DRAFTER))) == read(DRAFTER)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('profile = "drafter"', 'profile = "draftr"', "headway.toml:17: models.replicas.profile: 'draftr' is no profile of the model: did you mean 'drafter'?"),
        ('profile = "drafter"', 'profile = "x"', "'x' is no profile of the model: known profiles: drafter"),
        ('name = "drafter"', 'name = "two words"', "headway.toml:6: models.profiles.name = 'two words'"),
        ('drafter = "some/drafter"', "tokens = 3", "headway.toml:11: models.profiles.speculation: method = \"draft_model\" drafts with a model: set `drafter`"),
        ('method = "draft_model"', 'method = "ngram"', "headway.toml:11: models.profiles.speculation: method = \"ngram\" drafts without a model: remove `drafter`"),
        ('method = "draft_model"', 'method = "fly"', "headway.toml:12: models.profiles.speculation.method = 'fly'"),
        ("seats = 16", 'quantization = "fp8"', "headway.toml:5: models.profiles: `quantization` can change answers"),
        ("seats = 16", "tensor_paralel = 2", "unknown setting `models.profiles.tensor_paralel`: did you mean `tensor_parallel`?"),
        ("curve = [[1, 200.0], [16, 50.0]]", "curve = [1, 200.0]", "headway.toml:8: models.profiles.curve: must look like [[1, 120.0]"),
        ("[[models.replicas]]", '[[models.profiles]]\nname = "drafter"\n\n[[models.replicas]]', "models.profiles: profile 'drafter' is configured 2 times: keep one"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line_and_a_fix(before: str, after: str, said: str) -> None:
    with pytest.raises(SetupError) as refused:
        read(DRAFTER.replace(before, after, 1))
    assert said in refused.value.message


def test_without_profiles_the_fix_is_to_add_one() -> None:
    text = '[[models]]\nname = "m"\n[[models.replicas]]\nurl = "http://127.0.0.1:1"\nprofile = "fast"\n'
    with pytest.raises(SetupError, match=r"add it as \[\[models\.profiles\]\], or remove `profile`"):
        read(text)


def test_profiles_belong_to_the_model_with_the_replicas(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(DRAFTER + '[[models]]\nname = "n"\nreplicas_of = "m"\n[[models.profiles]]\nname = "p"\n')
    with pytest.raises(SetupError, match="move its profiles to that model"):
        load(path)


def test_a_change_of_a_profile_is_one_difference_and_needs_no_restart() -> None:
    changed = DRAFTER.replace("[1, 200.0]", "[1, 190.0]").replace('8003"', '8003"\nprofile = "drafter"')
    found = differences(read(DRAFTER), read(changed))
    assert [str(one) for one in found] == [
        "models.m.profiles.drafter.curve: [(1, 200.0), (16, 50.0)] -> [(1, 190.0), (16, 50.0)]",
        "models.m.replicas.http://127.0.0.1:8003.seats: 64 -> 16",
        "models.m.replicas.http://127.0.0.1:8003.prompt_tps added: 9000.0",
        "models.m.replicas.http://127.0.0.1:8003.curve added: [(1, 190.0), (16, 50.0)]",
        "models.m.replicas.http://127.0.0.1:8003.profile added: 'drafter'",
    ]
