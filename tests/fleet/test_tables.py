"""fleet.toml: its errors, its placeholders, and which changes replace a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SetupError
from headway.fleet.tables import load_fleet
from tests.fleet.simulated import engines

HEAD = '[gateway]\nurl = "http://gateway:8000/"\nadmin_key_file = "admin.key"\n'
ENGINE = '[[processes]]\nname = "engine"\ncommand = ["vllm"]\nport = 9000\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, HEAD + ENGINE))
    assert fleet.gateway.url == "http://gateway:8000"
    assert (fleet.processes[0].name, fleet.processes[0].count, fleet.processes[0].gpus) == ("engine", 1, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gateway", "fleet.toml: not valid TOML"),
        (HEAD, "`processes` is missing: What runs on the nodes."),
        (ENGINE, "`gateway` is missing: Where engines are registered."),
        (HEAD.replace("http://", "ftp://") + ENGINE, 'fleet.toml:2: gateway.url: must look like "http://'),
        (HEAD + ENGINE + "gpu = 1\n", "fleet.toml:8: unknown setting `processes.gpu`: did you mean `gpus`?"),
        (HEAD + ENGINE.replace("engine", "My Engine"), "fleet.toml:5: processes.name = 'My Engine': "),
        (HEAD + ENGINE + 'ready = "health"\n', "fleet.toml:8: processes.ready = 'health': "),
        (HEAD + ENGINE + "gpus = 2.5\n", "fleet.toml:8: processes.gpus: must be a whole number"),
        (HEAD + ENGINE + "count = -1\n", "fleet.toml:8: processes.count = -1: "),
        (HEAD + ENGINE.replace("9000", "65530") + "count = 6\n", "need 7 ports from 65530 on: choose a lower port"),
        (HEAD + ENGINE + ENGINE.replace("9000", "9500"), "processes need different names: engine"),
        (
            HEAD + ENGINE + "count = 3\n" + ENGINE.replace("engine", "other").replace("9000", "9003"),
            "processes 'engine' need the ports 9000 to 9003, and 'other' those from 9003 on: choose ports",
        ),
        (HEAD + ENGINE + "scaling = { max_count = 2 }\n", "have no `model`, whose demand they could follow"),
        (HEAD + ENGINE + 'model = "m"\nscaling = { min_count = 3, max_count = 2 }\n', "must not be above max_count"),
    ],
)
def test_errors_point_to_the_line_and_say_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SetupError) as error:
        load_fleet(written(tmp_path, text))
    assert said in error.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"none.toml: No such file or directory. Create the file, or name another"):
        load_fleet(tmp_path / "none.toml")


def test_placeholders_are_filled_in_and_other_braces_are_left() -> None:
    table = engines(command=["vllm", "--host={host}", "{port}", "{index}/{index}", '{"port": 1}', "{other}"])
    assert table.words("10.0.0.1", 2) == ["vllm", "--host=10.0.0.1", "9002", "2/2", '{"port": 1}', "{other}"]


def test_a_version_changes_only_when_a_process_must_be_replaced() -> None:
    env = {"A": "1", "B": "2"}
    table = engines(env=env)
    same: list[dict[str, object]] = [
        {"count": 7},
        {"start_s": 1, "unhealthy_s": 2, "grace_s": 3},
        {"scaling": {"max_count": 4}},
        {"env": {"B": "2", "A": "1"}},
        {"cpus": 1.0},  # as when it is not set
    ]
    for change in same:
        assert engines(**{"env": env, **change}).version == table.version, change  # type: ignore[arg-type]
    other: list[dict[str, object]] = [{"command": ["b"]}, {"env": {}}, {"gpus": 1}, {"model": "n"}, {"ready": "/"}]
    for change in other:
        assert engines(**{"env": env, **change}).version != table.version, change  # type: ignore[arg-type]
    assert engines(port=9001, env=env).version != table.version
