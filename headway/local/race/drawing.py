"""What the terminal shows of a race: pure functions from its state to renderables and words."""

from __future__ import annotations

from math import ceil

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.core.types import Tier
from headway.local.race.state import Lane, Proof, Race, ReplicaSeats, RoundResult

MAX_WIDTH = 110
TEXT_LINES = 3
SEAT_ROWS = 2
SPACED_SEATS = 36  # of a replica, at most: more are drawn without spaces, to fit a terminal of 80 columns
COLOURS: dict[Tier, str] = {"standard": "deep_sky_blue1", "fast": "orange1"}
GLYPHS: dict[Tier, str] = {"standard": "●", "fast": "▲"}
OWN, FREE, CLOSED = "★", "○", "·"

IDEA = (
    "Fast mode runs a call on a replica with few streams aboard, so each stream gets more tokens per second. "
    "The price pays for the seats kept empty."
)


def draw(race: Race) -> RenderableType:
    heavy_first = sorted(race.replicas, key=lambda replica: replica.is_light)  # as the lanes above: standard, then fast
    picture = Group(
        _heading(race),
        _side_by_side(*(_lane(lane) for lane in race.lanes)),
        _side_by_side(*(_replica(replica, race) for replica in heavy_first)),
        _legend(race),
        Padding(Group(Text(IDEA), _score(race)), (1, 1, 0, 1)),
    )
    return _AtMost(picture, MAX_WIDTH)


def introduction(note: str) -> str:
    return f"{note}\n{IDEA}"


def round_in_words(race: Race, result: RoundResult | None) -> str:
    """A round as a line, for where nothing can move."""
    if result is None:
        problems = "; ".join(f"{lane.offer.name}: {lane.problem}" for lane in race.lanes if lane.problem)
        return f"round {race.round}: no result. {problems or 'An answer ended without its proof.'}"
    lanes = "; ".join(
        f"{lane.offer.name} {_tps(lane.tokens_per_second)} at {_price(lane)}, "
        f"proof: {_verdict(lane.proof)}, seat-time {_seat_time(lane.proof)}"
        for lane in race.lanes
        if lane.proof is not None
    )
    return f"round {race.round}: {lanes}"


def in_words(race: Race) -> str:
    """All rounds so far."""
    count = len(race.results)
    if not count:
        return "No round has been finished."
    speedup = f"fast ran at {race.median_speedup:.1f} times the speed of standard, " if race.median_speedup else ""
    return f"{count} round{'s' if count > 1 else ''}: {speedup}floor kept in {race.floors_kept} of {count}."


# --- the parts of the picture ----------------------------------------------------------------------------------------


def _heading(race: Race) -> RenderableType:
    title = Text.assemble(("Headway", "bold"), f': two speeds, one prompt: "{race.prompt}"')
    note = Text(race.note, style="yellow")
    return Padding(Group(_to_both_ends(title, Text(f"round {race.round}" if race.round else "")), note), (0, 1))


def _to_both_ends(left: Text, right: Text) -> Table:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(left, right)
    return line


def _side_by_side(left: RenderableType, right: RenderableType) -> Table:
    columns = Table.grid(expand=True)
    columns.add_column(ratio=1)
    columns.add_column(ratio=1)
    columns.add_row(left, right)
    return columns


def _lane(lane: Lane) -> Panel:
    colour = COLOURS[lane.offer.name]
    speed = Text(_tps(lane.tokens_per_second), style=f"bold {colour}")
    progress = Text(_progress(lane), style="dim")
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("floor", style="dim"), _floor(lane))
    facts.add_row(Text("proof", style="dim"), _verdict(lane.proof))
    facts.add_row(Text("seat-time", style="dim"), _seat_time(lane.proof))
    bar = _Bar(lane.tokens / lane.max_tokens, colour)
    body = Group(_to_both_ends(speed, progress), bar, _Tail(_said(lane), TEXT_LINES), facts)
    title = Text.assemble((f" {lane.offer.name} ", f"bold black on {colour}"), f" price {_price(lane)} ")
    return Panel(body, title=title, title_align="left", border_style=colour, box=box.ROUNDED)


def _progress(lane: Lane) -> str:
    if lane.proof is None or lane.proof.answer_seconds is None:
        return f"{lane.tokens} of {lane.max_tokens} tokens"
    return f"{lane.tokens} tokens in {lane.proof.answer_seconds:.1f} s"


def _said(lane: Lane) -> Text:
    if lane.problem:
        return Text(lane.problem, style="red")
    return Text(lane.text.lstrip()) if lane.text else Text("waiting for a seat", style="dim italic")


def _floor(lane: Lane) -> str:
    floor_tps = lane.offer.floor_tokens_per_second
    return f"{floor_tps:g} tok/s promised" if floor_tps else "none promised"


def _verdict(proof: Proof | None) -> Text:
    if proof is None:
        return Text("at the end of the answer", style="dim")
    kept = {True: ("✓ kept, ", "bold green"), False: ("✗ missed, ", "bold red"), None: ("", "")}[proof.kept]
    return Text.assemble(kept, f"served as {proof.tier_served}")


def _seat_time(proof: Proof | None) -> str:
    if proof is None or proof.seat_seconds is None:
        return ""
    return f"{proof.seat_seconds:.2f} s of the replica"


def _replica(replica: ReplicaSeats, race: Race) -> Panel:
    own = {lane.call_id for lane in race.lanes if lane.call_id}
    open_seats = replica.open_seats
    cells = []
    for number, call_id in enumerate(replica.seats):
        if call_id is None:
            cells.append((FREE, "") if number in open_seats else (CLOSED, "dim"))
        else:
            tier = replica.tiers[call_id]
            is_own = call_id in own
            cells.append((OWN, f"bold black on {COLOURS[tier]}") if is_own else (GLYPHS[tier], COLOURS[tier]))
    width = ceil(len(cells) / SEAT_ROWS)
    space = Text(" " if len(cells) <= SPACED_SEATS else "")
    rows = [space.join(Text(*cell) for cell in cells[start : start + width]) for start in range(0, len(cells), width)]
    kind, colour = ("light", COLOURS["fast"]) if replica.is_light else ("heavy", COLOURS["standard"])
    title = Text.assemble((f" {kind}", f"bold {colour}"), " replica ")
    each_tps = f"{replica.stream_tps:.{0 if replica.stream_tps >= 10 else 1}f}"
    caption = Text(f"{len(replica.tiers)} of {replica.limit} aboard, {each_tps} tok/s each")
    return Panel(Group(*rows, caption), title=title, title_align="left", border_style="bright_black", box=box.ROUNDED)


def _legend(race: Race) -> RenderableType:
    parts = [Text.assemble((GLYPHS[tier], COLOURS[tier]), f" {tier}") for tier in ("standard", "fast")]
    parts += [Text(f"{OWN} this race"), Text(f"{FREE} free"), Text(f"{CLOSED} kept empty", style="dim")]
    waiting = Text(f"{race.held} waiting", style="dim")
    return Padding(_to_both_ends(Text("  ").join(parts), waiting), (0, 2))


def _score(race: Race) -> RenderableType:
    others = ", ".join(f"{count} {tier}" for tier, count in race.callers.items())
    hint = Text(f"Load: {others} callers on {race.url}. Ctrl-C ends the race.", style="dim")
    if not race.results:
        return Group(Text("The first round is running." if race.round else "The load is starting."), hint)
    return Group(Text(in_words(race), style="bold"), hint)


def _tps(tokens_per_second: float | None) -> str:
    return f"{tokens_per_second:.1f} tok/s" if tokens_per_second is not None else "- tok/s"


def _price(lane: Lane) -> str:
    return f"{lane.offer.price_multiple or 1.0:g}x"


class _AtMost:
    """A renderable that does not get wider than it can be read."""

    def __init__(self, inner: RenderableType, width: int) -> None:
        self._inner, self._width = inner, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._inner, options.update_width(min(self._width, options.max_width)))


class _Bar:
    """How much is done, over the whole width. Rich's own bar is not drawn without colours."""

    def __init__(self, share: float, colour: str) -> None:
        self._share, self._colour = share, colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        done = round(self._share * options.max_width)
        yield Text.assemble(("━" * done, self._colour), ("─" * (options.max_width - done), "dim"))


class _Tail:
    """The last lines of a text, always as many: a picture that changes its height flickers."""

    def __init__(self, text: Text, lines: int) -> None:
        self._text, self._lines = text, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = list(self._text.wrap(console, options.max_width))[-self._lines :]
        yield Text("\n").join([*lines, *[Text(" ")] * (self._lines - len(lines))])
