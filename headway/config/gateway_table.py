"""The table `[gateway]` of headway.toml: the address, and the bounds of requests, connections and waiting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from headway.config.table import Table
from headway.config.urls import http_url


class GatewayTable(Table):
    """Where Headway listens and which requests it accepts."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any address except loopback requires keys.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0 picks a free port.")
    key_hashes: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = Field(
        [],
        description='SHA-256 of each accepted key, in hexadecimal: `printf %s "$KEY" | sha256sum`. '
        "If empty, anyone who can reach the address may send calls.",
    )
    admin_key_hashes: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = Field(
        [],
        description="SHA-256 of each key that may change what runs, such as `headway drain`. Such a key may not send "
        "calls. If empty, nobody may change it.",
    )
    eval_results: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        None,
        description="File `results.json` that `headway eval` wrote, such as `eval/results.json`. The console shows its "
        "table of mistakes by speed.",
    )
    unknown_fields: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="What happens to a request with fields that Headway does not know. `ignore` removes them and names "
        "them in the header `headway-ignored`; `refuse` answers with 400.",
    )
    max_body_bytes: int = Field(8 * 2**20, ge=1024, le=2**30, description="Maximum size of a request body.")
    max_held_bytes: int = Field(
        512 * 2**20,
        ge=0,
        le=2**40,
        description="Maximum size, in all, of the requests that wait for a seat. Further calls that would have to wait "
        "are refused with 429.",
    )
    max_held_bytes_per_key: int = Field(
        128 * 2**20, ge=0, le=2**40, description="The same for the requests of one key."
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of open client connections. If there are more, the one that has waited longest for "
        "a request is closed; if none waits, new ones get 503, except for `/health` and `/ready`.",
    )
    keep_alive_s: float = Field(
        75.0,
        gt=0,
        le=3600,
        description="A connection without a request is closed after this time. Must be longer than the idle timeout of "
        "a load balancer in front (60 s by default in nginx and AWS, 600 s in Google Cloud), which otherwise sends "
        "calls on connections that are just being closed.",
    )
    cors_origins: list[
        Annotated[str, StringConstraints(max_length=256, pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*]+)$")]
    ] = Field(
        [],
        max_length=100,
        description='Origins of web pages that may call from a browser (CORS), such as `"https://chat.example.com"`. '
        '`"*"` allows all of them and requires keys. A page shows its key to its users: give it a key with a budget.',
    )
    access_log: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        None,
        description='File that gets one line of JSON for each call that has ended, or `"-"` for standard output. '
        "[What is in it](../how-to/observe.md#the-access-log). If not set, there is none.",
    )
    otlp_endpoint: Annotated[str, AfterValidator(http_url)] | None = Field(
        None,
        repr=False,  # it may have a password
        description='Base URL of an OpenTelemetry collector, such as `"http://127.0.0.1:4318"`, which gets a span for '
        "each call by OTLP over HTTP. Needs the extra `otel`. If not set, nothing is traced, and a caller's "
        "`traceparent` is passed on to the engine.",
    )
    probe_interval_s: float = Field(1.0, gt=0, le=60, description="Time between two health checks of a replica.")
    stall_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="A replica that has running calls and makes no progress for this long is taken out of service. "
        "Must be longer than the engine's longest step, such as a large prompt chunk or the first use of a feature "
        "that vLLM compiles on demand (log-probabilities on a CPU: 17 s).",
    )
    reader_stall_s: float = Field(
        30.0, gt=0, le=3600, description="A client that does not read its stream for this long is disconnected."
    )
    unready_s: float = Field(
        0.0,
        ge=0,
        le=600,
        description="Time after SIGTERM in which calls are still taken while `/ready` answers 503, so that a load "
        "balancer sends the next ones elsewhere. More than it takes to notice. 0 if there is none.",
    )
    drain_timeout_s: float = Field(
        300.0, ge=0, le=86_400, description="Time that running streams have to finish after SIGTERM."
    )

    @property
    def is_observed(self) -> bool:
        """Whether somebody is told of each call that ends."""
        return self.access_log is not None or self.otlp_endpoint is not None
