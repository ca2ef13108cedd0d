"""The console in Chromium, on a gateway that runs in front of scripted engines."""

from __future__ import annotations

import http.client
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_process import free_port
from runs.measure.fetch import fetch
from runs.measure.streams import process, scripted

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
ADMIN_KEY, TENANT_KEY = "hw-admin", "hw-tenant"
HOSTILE = "<img src=x onerror=alert(1)>"
REVERSED = "\u202etxt.exe"
LONG = "three-hundred-characters-" * 12
ENGINES = 2
SEATS = 8
CONFIG = """
[gateway]
port = {port}
admin_key_hashes = ["{admin_hash}"]
probe_interval_s = 0.2
eval_results = "{folder}/results.json"

[ledger]
store = "sqlite:///{folder}/books.db"
spool = "{folder}/spool"

[[models]]
name = "scripted"
price = {{ input = 0.5, output = 1.5, replica_hour = 2.5 }}

[[models.tiers]]
name = "standard"

[[models.tiers]]
name = "fast"
floor_tps = 30.0
price_multiple = 2.0
{replicas}

[[models]]
name = "{hostile}"

[[models.replicas]]
url = "{hostile_url}"
seats = {seats}
"""
REPLICA = """
[[models.replicas]]
url = "{url}"
seats = {seats}
curve = [[1, 50.0], [4, 40.0], [8, 25.0]]
"""


@dataclass(frozen=True)
class Service:
    port: int
    engine_urls: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def running(self) -> dict[str, int]:
        """The streams that each engine runs, by its own record."""
        return {
            url: msgspec.json.decode(fetch(f"{url}/scripted/record", timeout_s=10))["running"]
            for url in self.engine_urls
        }

    @contextmanager
    def calls(self, number: int, **more: Any) -> Iterator[None]:
        """So many streams that run until the block ends."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True, **more}
        headers = {"authorization": f"Bearer {TENANT_KEY}", "content-type": "application/json"}
        with ExitStack() as open_connections:
            for _ in range(number):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                open_connections.callback(connection.close)
                connection.request("POST", "/v1/chat/completions", json.dumps({**body, "max_tokens": 4000}), headers)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                open_connections.callback(answer.close)
            yield


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("console")
    port, hostile_port, *ports = [free_port() for _ in range(ENGINES + 2)]
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    store = SQLiteStore(folder / "books.db")
    store.migrate()
    names = {"tenant": HOSTILE, "reversed": REVERSED, "long": LONG}
    for identity, name in names.items():
        hashed = key_hash((TENANT_KEY if identity == "tenant" else f"hw-{identity}").encode())
        store.put_key(Key(id=f"key-{identity}", hash=hashed, name=name, budget_day=5_000_000))
    store.close()
    interval = {"value": 2.0, "low": 1.0, "high": 3.0}
    figures = {"name": HOSTILE, "right": {"count": 95, "of": 100}, "answer_s": interval, "time_to_right_s": interval}
    verdict = {"tasks": 100, "figures": [figures], "recommended": {"use": HOSTILE, "is_clear": True}}
    (folder / "results.json").write_text(json.dumps({"asked": {"tasks": "routine"}, "verdicts": [verdict]}))
    config = folder / "headway.toml"
    config.write_text(
        CONFIG.format(
            port=port,
            admin_hash=key_hash(ADMIN_KEY.encode()),
            folder=folder,
            replicas="".join(REPLICA.format(url=url, seats=SEATS) for url in urls),
            hostile=HOSTILE,
            hostile_url=f"http://127.0.0.1:{hostile_port}",
            seats=SEATS,
        )
    )
    slow: dict[str, Any] = {"first_token_ms": 5, "step_ms": "1:20,8:40", "seats": SEATS}
    with ExitStack() as engines:
        for one in ports:
            engines.enter_context(scripted(one, model="scripted", **slow))
        engines.enter_context(scripted(hostile_port, model=HOSTILE, **slow))
        serve = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        engines.enter_context(process(serve, f"http://127.0.0.1:{port}/ready"))
        yield Service(port, urls)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "these tests need Debian's chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, *, scheme: Literal["light", "dark"] = "light", width: int = 1280
) -> Iterator[tuple[Page, list[str]]]:
    """A page in a profile of its own, and the errors that the browser reported for it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(15_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
    page.goto(url)
    yield page, errors
    context.close()


@contextmanager
def signed_in(browser: Browser, service: Service, **how: Any) -> Iterator[Page]:
    """The console with its figures. Fails if the browser has reported an error by the end of the block."""
    with opened(browser, f"{service.url}/console#key={ADMIN_KEY}", **how) as (page, errors):
        expect(page.locator("#replicas .bus")).to_have_count(ENGINES + 1)
        yield page
    assert errors == []


def until(is_so: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shows_streams(page: Page, expected: dict[str, int]) -> None:
    """Wait, a second at most, until each bus has as many streams as its engine has."""
    page.wait_for_function(
        """(expected) => Object.entries(expected).every(([url, streams]) =>
             [...document.querySelectorAll(".bus")].some((bus) =>
               bus.querySelector(".name").title === url &&
               parseInt(bus.querySelector(".bus-figures").textContent) === streams))""",
        arg=expected,
        timeout=1000,
    )


def test_the_buses_follow_the_engines_own_records(chromium: Browser, service: Service) -> None:
    with signed_in(chromium, service) as page:
        for number in (1, 5, 12):
            with service.calls(number):
                until(lambda number=number: sum(service.running().values()) == number)  # type: ignore[misc]
                shows_streams(page, service.running())
            until(lambda: sum(service.running().values()) == 0)
            shows_streams(page, dict.fromkeys(service.engine_urls, 0))
        with service.calls(2, service_tier="fast"):
            until(lambda: sum(service.running().values()) == 2)
            shows_streams(page, service.running())
            expect(page.locator("#replicas .bus-taken", has_text="fast 2")).to_have_count(1)
            expect(page.locator("#replicas .bus .word-light")).not_to_have_count(0)


def test_the_key_leaves_the_address_at_once(chromium: Browser, service: Service) -> None:
    with signed_in(chromium, service) as page:
        assert page.url == f"{service.url}/console"
        page.reload()
        expect(page.locator("#replicas .bus")).to_have_count(ENGINES + 1)  # from this tab's storage
        page.get_by_role("button", name="Forget key").click()
        expect(page.get_by_label("Admin key")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_tenants_key_is_refused_and_sees_nothing(chromium: Browser, service: Service) -> None:
    with opened(chromium, f"{service.url}/console") as (page, _):
        page.get_by_label("Admin key").fill(TENANT_KEY)
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_role("alert")).to_contain_text("admin key")
        assert "scripted" not in page.content()
        assert service.engine_urls[0] not in page.content()
        assert page.evaluate("sessionStorage.length") == 0


def test_both_answers_of_the_try_it_pane_show_their_proof(chromium: Browser, service: Service) -> None:
    with signed_in(chromium, service) as page:
        pane = page.locator("#try")
        pane.get_by_label("Key for calls").fill(TENANT_KEY)
        pane.get_by_label("Longest answer").fill("40")
        pane.get_by_label("Prompt").fill("Tell me of a bus.")
        pane.get_by_label("Prompt").press("Control+Enter")
        lanes = pane.locator(".lane")
        expect(lanes).to_have_count(2)
        for lane, tier, floor in ((lanes.nth(0), "standard", "none promised"), (lanes.nth(1), "fast", "30 tok/s")):
            proof = lane.get_by_role("table", name="Proof")
            expect(proof).to_be_visible()
            row = {one.locator("th").inner_text(): one.locator("td").inner_text() for one in proof.locator("tr").all()}
            assert (row["Tier"], row["Floor"]) == (tier, floor)
            assert row["Speed, measured"].endswith(" tok/s")
            assert "currency of headway.toml" in row["Price"]
            expect(lane.locator(".lane-speed")).to_contain_text("40 tokens")
        expect(lanes.nth(1).locator("tr", has_text="Floor kept")).to_contain_text("yes")


def test_a_refused_call_of_the_try_it_pane_says_why(chromium: Browser, service: Service) -> None:
    with opened(chromium, f"{service.url}/console#key={ADMIN_KEY}") as (page, _):
        pane = page.locator("#try")
        pane.get_by_label("Key for calls").fill("hw-nobody")
        pane.get_by_role("button", name="Send").click()
        expect(pane.get_by_role("alert")).to_have_count(2)
        expect(pane.get_by_role("alert").first).to_contain_text("No valid key (401)")


def test_names_that_others_chose_are_text(chromium: Browser, service: Service) -> None:
    with signed_in(chromium, service) as page:
        expect(page.get_by_role("rowheader", name=HOSTILE).first).to_be_visible()  # the model
        keys = page.locator("#keys")
        expect(keys.get_by_role("rowheader", name=HOSTILE)).to_be_visible()
        expect(keys.get_by_role("rowheader", name="\\u{202e}txt.exe")).to_be_visible()
        expect(keys.get_by_role("rowheader", name=LONG)).to_be_visible()
        assert page.locator("img").count() == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(chromium: Browser, service: Service, width: int) -> None:
    with signed_in(chromium, service, width=width) as page:
        expect(page.locator("#keys table")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium: Browser, service: Service, scheme: str, width: int) -> None:
    with signed_in(chromium, service, scheme=scheme, width=width) as page:
        pane = page.locator("#try")
        pane.get_by_label("Key for calls").fill(TENANT_KEY)
        pane.get_by_label("Longest answer").fill("20")
        pane.get_by_role("button", name="Send").click()
        expect(pane.get_by_role("table", name="Proof")).to_have_count(2)
        page.evaluate(AXE.read_text())
        violations = page.evaluate("async () => (await axe.run()).violations")
        serious = [one for one in violations if one["impact"] in {"serious", "critical"}]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious] == []


def test_figures_that_are_old_say_so_and_polling_goes_on(chromium: Browser, service: Service) -> None:
    with opened(chromium, f"{service.url}/console#key={ADMIN_KEY}") as (page, _):
        status = page.get_by_role("banner").get_by_role("status")
        expect(status).to_have_text("Live")

        def fail(route: Route) -> None:
            route.fulfill(status=503, json={"error": {"message": "The store is away."}})

        page.route("**/admin/live", fail)
        expect(status).to_contain_text("Old. Figures from")
        expect(status).to_contain_text("The store is away.")
        page.unroute("**/admin/live")
        expect(status).to_have_text("Live")
