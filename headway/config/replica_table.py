"""The tables `[[models.replicas]]` and `[models.discover]` of headway.toml: engines that are listed, found by DNS, or
registered."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from headway.config.measured_table import MeasuredTable
from headway.config.urls import http_url, tcp_address

HOST_AND_PORT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,250}[A-Za-z0-9.])?:\d{1,5}")
SRV_NAME = re.compile(r"_[A-Za-z0-9_.-]{1,250}")


class EngineSettings(MeasuredTable):
    """What is measured or set of an engine. What its profile has and it has not set itself is in it too."""

    kind: str = Field(
        "vllm",
        description="Kind of engine: `vllm`, or `openai` for another server with OpenAI's chat and completions, of "
        "which less is known.",
    )
    profile: str | None = Field(
        None,
        description="Name of one of the model's `[[models.profiles]]`: how the engine is started. `seats`, `curve` and "
        "`prompt_tps` are those of the profile unless they are set here too.",
    )


class ReplicaTable(EngineSettings):
    """One engine."""

    url: str = Field(description="Base URL of the server. Keep it on loopback or a private network.")

    kv_events: str | None = Field(
        None,
        description="Where the engine publishes what its prefix cache stores and evicts, such as `tcp://10.0.0.5:5557` "
        "(vLLM's `--kv-events-config`, which `headway engine` prints). Needs the extra `kv-events`. Without it the "
        "gateway estimates what an engine has evicted.",
    )
    kv_replay: str | None = Field(
        None,
        description="Where the engine sends again what was missed of `kv_events`, such as `tcp://10.0.0.5:5558`. "
        "Without it, a message that is missed empties what the gateway expects in the engine's cache.",
    )

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return http_url(url)

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _tcp(cls, address: str | None) -> str | None:
        return address if address is None else tcp_address(address)

    @model_validator(mode="after")
    def _has_events(self) -> ReplicaTable:
        if self.kv_replay is not None and self.kv_events is None:
            raise ValueError("`kv_replay` is for what was missed of `kv_events`: set that too, or remove it")
        if self.kv_events is not None and self.kind != "vllm":
            raise ValueError(f"`kv_events` are vLLM's, and this engine is of the kind {self.kind!r}: remove it")
        return self


class DiscoverTable(EngineSettings):
    """Engines that have the same settings and are found by DNS, as those behind a headless Service of Kubernetes, or
    are registered at `/admin/registered`, as `headway fleet` does."""

    dns: str | None = Field(
        None,
        description="Name that is looked up again and again: `engines.default.svc:8000`, whose A and AAAA records are "
        "the engines, or a name that begins with `_`, such as `_http._tcp.engines.default.svc`, whose SRV records are.",
    )
    registered: bool = Field(
        default=False,
        description="Instead of `dns`: the engines are those that an admin has registered at `/admin/registered`. "
        "A gateway that is started again has none until they are registered again, which `headway fleet` does every "
        "few seconds.",
    )
    scheme: Literal["http", "https"] = Field("http", description="How the engines that DNS names are called.")
    max_model_len: int | None = Field(
        None,
        ge=1,
        le=2**30,
        description="Context in tokens that all of them must have (`--max-model-len`). One that reports less takes no "
        "calls: it was started with other flags.",
    )
    every_s: float = Field(5.0, ge=0.1, le=3600, description="Time between two lookups.")

    @field_validator("dns")
    @classmethod
    def _name(cls, dns: str | None) -> str | None:
        if dns is not None and not HOST_AND_PORT.fullmatch(dns) and not SRV_NAME.fullmatch(dns):
            raise ValueError('must look like "engines.default.svc:8000" or "_http._tcp.engines.default.svc"')
        return dns

    @model_validator(mode="after")
    def _one_source(self) -> DiscoverTable:
        if (self.dns is None) != self.registered:
            raise ValueError("[models.discover] needs either `dns` or `registered = true`")
        return self
