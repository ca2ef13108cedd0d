"""The check of the built site finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.site import problems

GOOD = (
    '<link rel="stylesheet" href="style.css"><h1 id="top">x</h1><a href="#top">x</a><a href="https://example.org">x</a>'
)


def site_with(folder: Path, body: str, style: str = "p { color: black }") -> Path:
    (folder / "index.html").write_text(GOOD + body, encoding="utf-8")
    (folder / "style.css").write_text(style, encoding="utf-8")
    return folder


def test_a_good_site_has_no_problem(tmp_path: Path) -> None:
    assert problems(site_with(tmp_path, '<a href="index.html#top">x</a>')) == []


@pytest.mark.parametrize(
    ("body", "style", "said"),
    [
        ('<a href="gone.html">x</a>', "", "gone.html, which is not there"),
        ('<a href="#gone">x</a>', "", "#gone, which has no such place"),
        ('<img src="gone.png">', "", "gone.png, which is not there"),
        ('<script src="https://cdn.example.org/x.js"></script>', "", "loads https://cdn.example.org/x.js"),
        ("", "@import url(//fonts.example.org/x);", "style.css loads //fonts.example.org/x"),
    ],
)
def test_a_problem_is_found(tmp_path: Path, body: str, style: str, said: str) -> None:
    [found] = problems(site_with(tmp_path, body, style))
    assert said in found


def test_no_site_is_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path)
