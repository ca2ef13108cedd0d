"""The runs behind the README's front door: what they extract and draw, and that their bar can fail."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from runs.front_door.newcomer import MAX_RACE_S, Visit, commands, problems
from runs.front_door.picture import Animation, Line, Run
from runs.front_door.tutorial import MAX_MINUTES, Tutorial, proof_of
from runs.front_door.tutorial import Visit as TutorialVisit
from runs.front_door.tutorial import problems as tutorial_problems

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
LINES = ["pip install .", "headway demo --scripted"]


def test_the_commands_are_the_readmes() -> None:
    found = commands(README)
    assert found[-1] == "headway demo --scripted"
    assert any(line.startswith("pip install") for line in found)


def test_a_readme_without_the_race_is_an_error() -> None:
    with pytest.raises(SystemExit, match="headway demo --scripted"):
        commands("```bash\npip install .\n```")


def test_a_quick_race_that_ends_well_has_no_problem() -> None:
    assert problems(Visit(LINES, done_s={0: 300.0}, raced_s=300.0 + MAX_RACE_S, exit_code=0)) == []


@pytest.mark.parametrize(
    ("visit", "said"),
    [
        (Visit(LINES, done_s={0: 300.0}, raced_s=301.0 + MAX_RACE_S, exit_code=0), "the bar is 60"),
        (Visit(LINES, done_s={0: 300.0}, exit_code=0), "no race"),
        (Visit(LINES, exit_code=1), "no race"),
        (Visit(LINES, done_s={0: 1.0}, raced_s=2.0, exit_code=1), "exit code 1"),
        (Visit(LINES, done_s={0: 1.0}, raced_s=2.0), "exit code None"),
    ],
)
def test_the_bar_can_fail(visit: Visit, said: str) -> None:
    assert said in "; ".join(problems(visit))


def test_the_blocks_are_the_tutorials() -> None:
    page = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = Tutorial.read(page)
    bash = list(blocks.bash)
    assert [block.split("\n")[0] for block in bash[1:3]] == ["headway demo --scripted", "headway demo"]
    assert bash[8].strip() == "python"
    assert "service_tier" in next(blocks.python)
    assert next(blocks.toml).startswith("# headway.toml")


def test_a_proof_is_read_from_an_answer() -> None:
    assert proof_of('{"usage": {"headway": {"tier_served": "fast"}}}') == {"tier_served": "fast"}


@pytest.mark.parametrize(
    ("visit", "said"),
    [
        (TutorialVisit(proved_s=60 * MAX_MINUTES), []),
        (TutorialVisit(proved_s=60 * MAX_MINUTES + 7), ["the bar is 10"]),
        (TutorialVisit(), ["no fast answer"]),
        (TutorialVisit(proved_s=1.0, problem="`headway bill` ended with 1"), ["ended with 1"]),
    ],
)
def test_the_tutorials_bar_can_fail(visit: TutorialVisit, said: list[str]) -> None:
    found = tutorial_problems(visit)
    assert len(found) == len(said)
    assert all(words in problem for words, problem in zip(said, found, strict=True))


def test_a_line_that_stays_is_written_once_and_one_that_changes_is_shown_in_its_frames() -> None:
    def frame(second: str) -> list[Line]:
        return [(Run(0, "same", "fill:#fff"),), (Run(2, second, "fill:#fff"),)]

    animation = Animation([(10.0, frame("a & b")), (11.0, frame("c")), (12.0, frame("a & b"))])
    svg = animation.svg("title")
    texts = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["headway demo --scripted", "same", "a & b", "c"]
    assert animation._keyframes(((0, 0), (2, 2))) == (
        "0%{visibility:visible}16.67%{visibility:hidden}33.33%{visibility:visible}100%{visibility:hidden}"
    )
