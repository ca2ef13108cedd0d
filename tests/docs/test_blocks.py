"""The code blocks of the documentation: those that can be run here are, the others are checked as far as they can be."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headway.config import Config
from headway.engines.scripted import read_answers
from headway.fleet.tables import FleetTable
from tests.docs.commands import headway_calls, problem
from tests.docs.configuration import BASE, merged, placed
from tests.docs.pages import ROOT, Block, Page, all_pages, count
from tests.docs.session import Session

PAGES = all_pages()
BLOCKS = [block for page in PAGES for block in page.blocks]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


@pytest.mark.docs
@pytest.mark.timeout(300)  # each step has a bound of its own
@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks], ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Page, tmp_path: Path) -> None:
    blocks = [block for block in page.blocks if block.fate == "run" and block.language in ("bash", "python", "toml")]
    session = Session(tmp_path)
    try:
        if any(block.language != "toml" for block in blocks):
            for block in blocks:
                session.run(block)
    finally:
        session.close()


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_a_valid_configuration(block: Block, tmp_path: Path) -> None:
    given = tomllib.loads(block.text)
    if block.file_name == "answers.toml":
        path = tmp_path / block.file_name
        path.write_text(block.text, encoding="utf-8")
        assert read_answers(path)
    elif block.file_name == "fleet.toml" or "processes" in given:
        gateway = {"url": "http://10.0.0.5:8000", "admin_key_file": "/etc/headway/admin.key"}
        FleetTable.model_validate({"gateway": gateway, **given})
    elif block.comment == "part of headway.toml":
        Config.model_validate(placed(merged(before(block), given)))
    else:
        Config.model_validate(placed(given))


def before(part: Block) -> dict[str, Any]:
    """The configuration that the reader of a page has when a part comes: the page's own, with the parts so far."""
    config = BASE
    for block in of("toml"):
        if block.page != part.page or block.line >= part.line:
            continue
        if block.file_name == "headway.toml":
            config = tomllib.loads(block.text)
        elif block.comment == "part of headway.toml":
            config = merged(config, tomllib.loads(block.text))
    return config


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    text = re.sub(r", \.\.\.|(?<=[\[{])\.\.\.", "", block.text)
    text = text if text.startswith("{") else f"{{{text}}}"
    for line in [text] if text.count("\n{") == 0 else text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec", dont_inherit=True)


@pytest.mark.parametrize("block", of("bash", "ini"), ids=str)
def test_headway_commands_are_those_of_the_package(block: Block) -> None:
    for words in headway_calls(block.text.replace("/opt/headway/bin/headway", "; headway")):
        assert not (found := problem(words)), f"{block}: {found}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headway_commands_in_the_text_are_those_of_the_package(page: Page) -> None:
    for code in re.findall(r"`(headway [a-z][^`]*)`", page.prose):
        for words in headway_calls(" ".join(code.split())):
            assert not (found := problem(words)), f"{page.name}: `{code}`: {found}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.run_by], ids=str)
def test_who_is_said_to_run_a_block_names_its_page(block: Block) -> None:
    runner = ROOT / block.run_by
    assert runner.is_file(), f"{block}: there is no {block.run_by}"
    script = runner.read_text(encoding="utf-8")
    module = re.search(r"^exec .*-m ([\w.]+)", script, re.MULTILINE)
    folder = (ROOT / module[1].replace(".", "/")).parent if module else None
    texts = [script, *[path.read_text(encoding="utf-8") for path in (folder.glob("*.py") if folder else ())]]
    name = Path(block.page).name
    assert any(name in text for text in texts), f"{block.run_by} does not name {name}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.fate == "not code"], ids=str)
def test_what_is_not_code_is_called_so(block: Block) -> None:
    assert block.language in ("text", "ini"), f"{block}: name its language, or `text`"


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("headway serve --relays 4", ""),
        ("headway serve --relais 4", "`headway serve` has no option --relais"),
        ("headway server", "there is no command `headway server`"),
        ("headway check && headway keys make", "there is no command `headway keys make`"),
        ("A=1 headway keys create \\\n  --named x > key.txt", "`headway keys create` has no option --named"),
        ("cat > x <<'END'\nheadway nonsense\nEND\nheadway check", ""),
        ("echo text  # headway nonsense", ""),
        ("kubectl exec pod -- headway nonsense", "there is no command `headway nonsense`"),
        ("kubectl create namespace headway", ""),
    ],
)
def test_a_wrong_command_is_found(script: str, wrong: str) -> None:
    assert [found for words in headway_calls(script) if (found := problem(words))] == ([wrong] if wrong else [])


def test_blocks_are_counted() -> None:
    """Most that can be run is run. See `make docs`."""
    print(count(PAGES))
    assert len([block for block in BLOCKS if block.fate in ("run", "run elsewhere")]) > len(BLOCKS) / 2


@pytest.mark.parametrize(
    ("language", "text", "error"),
    [
        ("bash", "true\nfalse\ntrue\n", AssertionError),
        ("bash", "false | true\n", AssertionError),
        ("bash", "headway serve\n", AssertionError),
        ("python", "print(undefined)\n", NameError),
    ],
)
def test_a_block_that_fails_is_found(language: str, text: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('models = [{ name = "a", replicas = [{ url = "ftp://a" }] }]\n')
    session = Session(tmp_path)
    try:
        with pytest.raises(error):
            session.run(Block("page.md", 1, language, text, ""))
    finally:
        session.close()
