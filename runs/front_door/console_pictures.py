"""Pictures of the console on a gateway under load, with real and scripted replicas. See runs/console-pictures.sh."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvloop
from playwright.sync_api import sync_playwright
from rich.console import Console

from headway.core.curve import Curve
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.demo.speed import measure_speed
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import free_port
from runs.measure.callers import load
from runs.measure.engines import two_smollm2
from runs.measure.streams import ChatRequest, chat_request, process, scripted
from runs.measure.verdict import Verdict, at_least, finish, none_of

PICTURES = Path(__file__).parents[2] / "docs" / "how-to"
WIDTHS = (1280, 390)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WARM_UP_S, LOOK_S = 60.0, 8.0  # of load before the first picture, and of each page before its picture
ENGINES_NICENESS = 19  # they share their cores with the gateway, which in service has its own
REAL_SEATS, SCRIPTED_SEATS, SCRIPTED_REPLICAS = 16, 32, 4
SCRIPTED = "scripted"
CURVE = Curve(a=0.0196, c=0.00176, d=0.0)  # of the scripted replicas: 47 tok/s alone, 13 at 32 streams
SCRIPTED_FLOOR_TPS = 25.0
ADMIN = "hw-admin"
TEAMS = {"search": "hw-search", "batch-jobs": "hw-batch"}
# Callers by model, tier and team.
CALLERS = {
    (MODEL_NAME, "standard", "batch-jobs"): 12,
    (MODEL_NAME, "fast", "search"): 1,
    (SCRIPTED, "standard", "batch-jobs"): 46,
    (SCRIPTED, "flex", "batch-jobs"): 3,
    (SCRIPTED, "fast", "search"): 5,
}

console = Console(width=110)


@dataclass(frozen=True)
class Looked:
    pictures: int
    errors: list[str]  # that the browser reported
    too_wide: list[str]  # pages that are wider than their window


def verdict(looked: Looked) -> Verdict:
    bars = (
        at_least("pictures", looked.pictures, len(WIDTHS) * len(SCHEMES), "d"),
        none_of("errors that the browser reported", len(looked.errors)),
        none_of("pages wider than their window", len(looked.too_wide)),
    )
    figure = (
        f"{looked.pictures} pictures of the console under load, with two real and {SCRIPTED_REPLICAS} scripted replicas"
    )
    return Verdict(figure, bars)


def write_config(folder: Path, port: int, real: list[str], made_up: list[str], points: list[list[float]]) -> Path:
    admin = hashlib.sha256(ADMIN.encode()).hexdigest()
    # Measured on idle engines; under this load each gets less of its core.
    real_floor = round(0.75 * math.sqrt(points[0][1] * points[-1][1]), 1)
    made_up_points = [[batch, round(CURVE.speed_tps(batch), 2)] for batch in (1, 8, SCRIPTED_SEATS)]
    models = [
        _model(MODEL_NAME, real, REAL_SEATS, points, real_floor, 2.0),
        _model(SCRIPTED, made_up, SCRIPTED_SEATS, made_up_points, SCRIPTED_FLOOR_TPS, 1.8),
    ]
    path = folder / "headway.toml"
    path.write_text(
        f'[gateway]\nport = {port}\nadmin_key_hashes = ["{admin}"]\n'
        f'[ledger]\nstore = "sqlite:///{folder}/books.db"\nspool = "{folder}/spool"\n' + "".join(models)
    )
    return path


def _model(
    name: str, urls: list[str], seats: int, points: list[list[float]], floor_tps: float, price_multiple: float
) -> str:
    replicas = "".join(f'[[models.replicas]]\nurl = "{url}"\nseats = {seats}\ncurve = {points}\n' for url in urls)
    return (
        f'[[models]]\nname = "{name}"\nprice = {{ input = 0.2, output = 0.8, replica_hour = 0.05 }}\n'
        f'[[models.tiers]]\nname = "standard"\n'
        f'[[models.tiers]]\nname = "fast"\nfloor_tps = {floor_tps}\nprice_multiple = {price_multiple}\n'
        f'[[models.tiers]]\nname = "flex"\nprice_multiple = 0.5\n{replicas}'
    )


def put_keys(folder: Path) -> None:
    store = open_store(f"sqlite:///{folder}/books.db")
    store.migrate()
    for team, key in TEAMS.items():
        store.put_key(Key(id=f"key-{team}", hash=key_hash(key.encode()), name=team, budget_day=2_000_000))
    store.close()


def requests_of(model: str, tier: str, key: str) -> Callable[[], ChatRequest]:
    dice = random.Random(f"{model} {tier}")

    def next_request() -> ChatRequest:
        asked = "default" if tier == "standard" else tier
        return chat_request(model, dice.randint(60, 180), key, service_tier=asked)

    return next_request


def look(url: str) -> Looked:
    """Take the pictures, each of a page that was open for a while."""
    path = shutil.which("chromium")
    assert path, "needs Debian's chromium"
    looked = Looked(0, [], [])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        taken = 0
        for width in WIDTHS:
            for scheme in SCHEMES:
                name = f"console-{width}-{scheme}"
                context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
                page = context.new_page()
                page.on("console", lambda said: looked.errors.append(said.text) if said.type == "error" else None)
                page.on("pageerror", lambda error: looked.errors.append(str(error)))
                page.goto(f"{url}/console#key={ADMIN}")
                page.wait_for_selector(".bus")
                page.wait_for_timeout(1000 * LOOK_S)
                if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                    looked.too_wide.append(name)
                page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
                taken += 1
                context.close()
        browser.close()
    return Looked(taken, looked.errors, looked.too_wide)


async def under_load(url: str) -> Looked:
    async with contextlib.AsyncExitStack() as stack:
        for (model, tier, team), count in CALLERS.items():
            await stack.enter_async_context(load(url, requests_of(model, tier, TEAMS[team]), count))
        with console.status(f"load for {WARM_UP_S:.0f} s"):
            await asyncio.sleep(WARM_UP_S)
        with console.status("pictures"):
            return await asyncio.to_thread(look, url)


def main() -> int:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        real = stack.enter_context(two_smollm2(console, REAL_SEATS, niceness=ENGINES_NICENESS))
        with console.status("measuring an engine"):
            speed = uvloop.run(measure_speed(real, MODEL_NAME, REAL_SEATS, [], lambda _: None))
        points = [[point.streams, round(point.nine_in_ten_tps, 2)] for point in speed.points]
        ports = [free_port() for _ in range(SCRIPTED_REPLICAS)]
        steps = ",".join(f"{batch}:{1000 * CURVE.seconds_per_token(batch):.3f}" for batch in (1, 8, SCRIPTED_SEATS))
        for port in ports:
            stack.enter_context(scripted(port, model=SCRIPTED, first_token_ms=40, step_ms=steps, seats=SCRIPTED_SEATS))
        put_keys(folder)
        port = free_port()
        config = write_config(folder, port, real, [f"http://127.0.0.1:{one}" for one in ports], points)
        url = f"http://127.0.0.1:{port}"
        serve = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        stack.enter_context(process(serve, f"{url}/ready"))
        time.sleep(1.0)
        looked = uvloop.run(under_load(url))
    for one in (*looked.errors, *looked.too_wide):
        console.print(one, style="red", markup=False)
    return finish(console, verdict(looked))


if __name__ == "__main__":
    sys.exit(main())
