"""Records a round of `headway demo --scripted` as an animated SVG. See runs/demo-picture.sh.

The race is the command's own, on its own engines and gateway; only the screen is another: each frame is drawn by the
same function and kept. In the SVG a line of text that stays the same over several frames is written once.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import uvloop
from rich.cells import cell_len
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from headway.local.race.drawing import draw
from headway.local.race.scripted import race_scripted
from headway.local.race.state import Race, RoundResult
from headway.run import running_gateway

PICTURE = Path("docs/demo.svg")
WIDTH = 100
ROUND = 2  # the first has no result to show until its end
LAST_FRAME_S = 4.0
MAX_BYTES = 200_000

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.4, 18, 14
BASELINE = 13.5  # from the top of a cell
MARGIN, BAR_HEIGHT = 14, 34
BACKGROUND, FOREGROUND = (13, 17, 23), (201, 209, 217)
ANSI = [
    (13, 17, 23), (255, 123, 114), (63, 185, 80), (210, 153, 34),
    (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196),
]  # fmt: skip
THEME = TerminalTheme(BACKGROUND, FOREGROUND, ANSI, [(110, 118, 129), *ANSI[1:]])
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"


@dataclass(frozen=True, slots=True)
class Run:
    """Text of one look, and the column it begins at."""

    column: int
    text: str
    css: str
    background: str = ""


Line = tuple[Run, ...]
Spans = tuple[tuple[int, int], ...]  # frames, from and to


class Recorder:
    """A screen that keeps the frames of one round, with the time of each."""

    reading_s = 1.0

    def __init__(self) -> None:
        self.frames: list[tuple[float, list[Line]]] = []
        self._console = Console(width=WIDTH, height=40, force_terminal=True, color_system="truecolor")

    def show(self, race: Race) -> None:
        if race.round == ROUND:
            rows = self._console.render_lines(draw(race), pad=False)
            self.frames.append((time.monotonic(), [tuple(_runs(row)) for row in rows]))

    def end_round(self, race: Race, result: RoundResult | None) -> None:
        pass

    def end(self, race: Race) -> None:
        pass


def _runs(segments: Iterable[tuple[str, Style | None, object]]) -> Iterator[Run]:
    column = 0
    for text, style, _ in segments:
        css, background = _look(style or Style())
        if text.strip() or background:
            yield Run(column, text, css, background)
        column += cell_len(text)


def _look(style: Style) -> tuple[str, str]:
    colour = style.color.get_truecolor(THEME) if style.color is not None else THEME.foreground_color
    if style.dim:
        colour = blend_rgb(colour, ColorTriplet(*BACKGROUND), 0.4)
    weight = ";font-weight:bold" if style.bold else ""
    background = style.bgcolor.get_truecolor(THEME, foreground=False).hex if style.bgcolor is not None else ""
    return f"fill:{colour.hex}{weight}", background


class Animation:
    """The frames as SVG: every distinct line once, shown while it is the one in its row."""

    def __init__(self, frames: list[tuple[float, list[Line]]]) -> None:
        starts = [at - frames[0][0] for at, _ in frames]
        self._length_s = starts[-1] + LAST_FRAME_S
        self._ends = [*starts[1:], self._length_s]
        self._starts = starts
        self._frames = [lines for _, lines in frames]
        self._looks: dict[str, str] = {}  # CSS -> its class
        self._timings: dict[Spans, str] = {}  # when a line is shown -> its class

    def svg(self, title: str) -> str:
        rows = max(len(lines) for lines in self._frames)
        body = "\n".join(part for row in range(rows) for part in self._row(row))  # before the styles, which it collects
        width, height = round(WIDTH * CELL_WIDTH + 2 * MARGIN), BAR_HEIGHT + rows * CELL_HEIGHT + MARGIN
        dots = "".join(
            f'<circle cx="{20 + 18 * number}" cy="18" r="6" fill="{colour}"/>'
            for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        )
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
                f"<title>{escape(title)}</title>",
                f"<style>\n{self._css()}\n</style>",
                f'<rect width="{width}" height="{height}" rx="8" fill="{ColorTriplet(*BACKGROUND).hex}"/>',
                dots,
                f'<text x="{width / 2:g}" y="23" text-anchor="middle" fill="#8b949e">headway demo --scripted</text>',
                f'<g transform="translate({MARGIN},{BAR_HEIGHT})">\n{body}\n</g>\n</svg>\n',
            )
        )

    def _row(self, row: int) -> Iterator[str]:
        shown: dict[Line, list[int]] = defaultdict(list)
        for number, lines in enumerate(self._frames):
            shown[lines[row] if row < len(lines) else ()].append(number)
        for line, frames in shown.items():
            if not line:
                continue
            text = "".join(self._run(run, row) for run in line)
            timing = self._timing(_spans(frames))
            yield f'<g class="{timing}">{text}</g>' if timing else text

    def _run(self, run: Run, row: int) -> str:
        y, parts = row * CELL_HEIGHT, []
        if run.background:
            x, width = run.column * CELL_WIDTH, cell_len(run.text) * CELL_WIDTH
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{CELL_HEIGHT}" fill="{run.background}"/>'
            )
        text = run.text.strip()
        x = (run.column + len(run.text) - len(run.text.lstrip())) * CELL_WIDTH
        look = self._looks.setdefault(run.css, f"c{len(self._looks)}")
        # The length is given, because the font is the viewer's.
        place = f'x="{x:.1f}" y="{y + BASELINE}" textLength="{cell_len(text) * CELL_WIDTH:.1f}"'
        return "".join([*parts, f'<text class="{look}" {place}>{escape(text, quote=False)}</text>'])

    def _timing(self, spans: Spans) -> str:
        if spans == ((0, len(self._frames) - 1),):
            return ""  # always there
        return self._timings.setdefault(spans, f"t{len(self._timings)}")

    def _css(self) -> str:
        rules = [f"text{{font:{FONT_SIZE}px {FONTS};white-space:pre}}"]
        rules += [f".{name}{{{css}}}" for css, name in self._looks.items()]
        rules.append(f"[class^=t]{{visibility:hidden;animation:{self._length_s:.1f}s step-end infinite}}")
        rules += [
            f".{name}{{animation-name:{name}}}@keyframes {name}{{{self._keyframes(spans)}}}"
            for spans, name in self._timings.items()
        ]
        # Where nothing moves, the last frame is shown.
        last = [f".{name}" for spans, name in self._timings.items() if spans[-1][1] == len(self._frames) - 1]
        rules.append(f"{','.join(last)}{{visibility:visible}}")
        rules.append("@media (prefers-reduced-motion:reduce){[class^=t]{animation:none!important}}")
        return "\n".join(rules)

    def _keyframes(self, spans: Spans) -> str:
        steps = {0.0: "hidden", 100.0: "hidden"}
        for first, last in spans:
            steps[self._share(self._starts[first])] = "visible"
            steps.setdefault(self._share(self._ends[last]), "hidden")
        return "".join(f"{share:g}%{{visibility:{state}}}" for share, state in sorted(steps.items()))

    def _share(self, at_s: float) -> float:
        return round(100 * at_s / self._length_s, 2)


def _spans(frames: list[int]) -> Spans:
    """Numbers of frames as stretches of neighbours, from and to."""
    spans: list[tuple[int, int]] = []
    for number in frames:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return tuple(spans)


def main() -> int:
    recorder = Recorder()
    race = uvloop.run(race_scripted(recorder, running_gateway, port=0, rounds=ROUND))
    if len(race.results) < ROUND:
        print(f"round {race.round} has no result: {race.standard.problem or race.fast.problem}")
        return 1
    svg = Animation(recorder.frames).svg("Headway's scripted demo: one prompt raced at standard and at fast speed.")
    PICTURE.write_text(svg, encoding="utf-8")
    result, size = race.results[-1], PICTURE.stat().st_size
    print(f"{PICTURE}: {len(recorder.frames)} frames of round {ROUND}, {size // 1000} kB (bar {MAX_BYTES // 1000})")
    print(
        f"scripted engines: standard {result.standard.tokens_per_second} tok/s, fast {result.fast.tokens_per_second} "
        f"tok/s, floor of {result.fast.floor_tokens_per_second:g} kept: {result.fast.kept}"
    )
    return 0 if size <= MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
