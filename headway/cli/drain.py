"""`headway drain`: let a replica take no more calls, and wait until its streams have ended."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from headway.admin_client import ask_admin
from headway.cli.admin import AdminKey, GatewayUrl
from headway.errors import SetupError

console = Console()

LOOK_S = 0.5


def drain(
    url: Annotated[str, typer.Argument(help="URL of the replica, as in headway.toml.")],
    gateway: GatewayUrl = "http://127.0.0.1:8000",
    undo: Annotated[bool, typer.Option("--undo", help="Let it take calls again.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until its streams have ended.")] = True,
    key: AdminKey = "",
) -> None:
    url = url.rstrip("/")
    order = json.dumps({"url": url, "undo": undo}).encode()
    row = _row_of(ask_admin(gateway, key, "/admin/drain", order), url)
    if undo:
        console.print(f"{url} takes calls again once it has produced a token.")
        return
    if wait:
        with console.status("") as shown:
            while row["aboard"]:
                shown.update(f"{url} takes no calls. Streams aboard: {row['aboard']}.")
                time.sleep(LOOK_S)
                row = _row_of(ask_admin(gateway, key, "/admin/replicas"), url)
    left = f"{row['aboard']} streams are aboard." if row["aboard"] else "No stream is aboard: it can be stopped."
    console.print(f"{url} takes no calls. {left} `headway drain {url} --undo` opens it again.", soft_wrap=True)


def _row_of(answer: dict[str, Any], url: str) -> dict[str, Any]:
    for row in answer["replicas"]:
        if row["url"] == url:
            return dict(row)
    raise SetupError(f"{url} is no longer a replica of this gateway: nothing is left to drain.")
