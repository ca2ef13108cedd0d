"""An owner who changes headway.toml at random: seats, curves, tiers, prices, replicas, aliases and models, and makes
mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

MODEL, SECOND = "m", "n"
ALIASES = ("also", "too")
SEATS = (2, 4, 6, 8)
CURVES = ("[[1, 48.0], [8, 40.0]]", "[[1, 45.0], [8, 30.0]]")
FLOORS = (15.0, 20.0, 25.0)
MIN_REPLICAS = 4


@dataclass(frozen=True)
class Wanted:
    """What a configuration says."""

    seats: dict[str, int]  # by URL of a replica
    curve: str = CURVES[0]
    floor_tps: float | None = FLOORS[0]  # of fast; None: it is not offered
    has_flex: bool = True
    output_price: float = 10.0
    aliases: tuple[str, ...] = ALIASES
    has_second: bool = True  # a second model on the same replicas
    gateway: str = ""  # lines of the table [gateway]

    def toml(self) -> str:
        tiers = ['[[models.tiers]]\nname = "standard"']
        if self.floor_tps is not None:
            tiers.append(f'[[models.tiers]]\nname = "fast"\nfloor_tps = {self.floor_tps}\nprice_multiple = 3.0')
        if self.has_flex:
            tiers.append('[[models.tiers]]\nname = "flex"')
        replicas = [
            f'[[models.replicas]]\nurl = "{url}"\nseats = {seats}\ncurve = {self.curve}'
            for url, seats in self.seats.items()
        ]
        aliases = ", ".join(f'"{alias}"' for alias in self.aliases)
        models = [f'[[models]]\nname = "{MODEL}"\naliases = [{aliases}]', *tiers, *replicas]
        models.append(f"[models.price]\ninput = 1.0\noutput = {self.output_price}")
        if self.has_second:
            models.append(f'[[models]]\nname = "{SECOND}"\nreplicas_of = "{MODEL}"')
        return "\n".join([f"[gateway]\n{self.gateway}", *models, ""])


@dataclass
class Owner:
    """Makes one change after the other."""

    dice: random.Random
    urls: list[str]
    wanted: Wanted
    _changes: list[Callable[[], Wanted]] = field(init=False)

    def __post_init__(self) -> None:
        self._changes = [self._seats, self._seats, self._replicas, self._replicas, self._offers, self._price]

    def change(self) -> Wanted:
        """The next configuration, which differs from the one before."""
        before = self.wanted
        while self.wanted == before:
            for change in self.dice.sample(self._changes, self.dice.randint(1, 3)):
                self.wanted = change()
        return self.wanted

    def mistake(self) -> str:
        """The text of a configuration that is not valid."""
        text, (url, seats) = self.wanted.toml(), next(iter(self.wanted.seats.items()))
        twice = f'[[models]]\nname = "{MODEL}"\n[[models.replicas]]\nurl = "http://127.0.0.1:1"\nseats = 1\n'
        return self.dice.choice(
            [
                text[: len(text) // 2] + "[[",
                text.replace(f'url = "{url}"\nseats = {seats}', f'url = "{url}"\nseats = 0'),
                text + twice,
                text.replace('name = "standard"', 'name = "standard"\nspeed = 3'),
                text.replace(f'url = "{url}"', f'url = "{url}"\nkind = "no-such-engine"'),
            ]
        )

    def _seats(self) -> Wanted:
        url = self.dice.choice(list(self.wanted.seats))
        return replace(self.wanted, seats=self.wanted.seats | {url: self.dice.choice(SEATS)})

    def _replicas(self) -> Wanted:
        """Add a replica that is not there, or remove one."""
        seats = dict(self.wanted.seats)
        missing = [url for url in self.urls if url not in seats]
        if missing and (len(seats) <= MIN_REPLICAS or self.dice.random() < 0.5):
            seats[self.dice.choice(missing)] = self.dice.choice(SEATS)
        else:
            del seats[self.dice.choice(list(seats))]
        return replace(self.wanted, seats=seats)

    def _offers(self) -> Wanted:
        dice = self.dice
        return replace(
            self.wanted,
            curve=dice.choice(CURVES),
            floor_tps=dice.choice((None, *FLOORS)),
            has_flex=dice.random() < 0.5,
            aliases=tuple(alias for alias in ALIASES if dice.random() < 0.5),
            has_second=dice.random() < 0.5,
        )

    def _price(self) -> Wanted:
        return replace(self.wanted, output_price=float(self.dice.randint(1, 50)))
