"""The options of commands that talk to a running gateway's `/admin`."""

from __future__ import annotations

from typing import Annotated

import typer

GatewayUrl = Annotated[str, typer.Option(help="URL of the running gateway.")]
AdminKey = Annotated[
    str,
    typer.Option(
        "--admin-key",
        envvar="HEADWAY_ADMIN_KEY",
        help="A key whose hash is in `admin_key_hashes`. Set the variable instead: others can see a command's options.",
        show_default=False,
    ),
]
