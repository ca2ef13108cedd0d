"""headway.toml: what it may say, read and checked once, at the start.

Every setting is a field below with its meaning and its bounds; docs/reference/configuration.md is written from the same
fields (`make docs`). An error names the line and the mend.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from headway.config_problems import checked
from headway.core.types import EXPRESS, Tier
from headway.errors import SetupError


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GatewayTable(_Table):
    """Where Headway listens, and what it accepts."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any but loopback needs keys.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    key_hashes: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = Field(
        [],
        description='SHA-256 of each key that may call, in hexadecimal: `printf %s "$KEY" | sha256sum`. '
        "Empty: anyone who can reach the address may call.",
    )
    max_body_bytes: int = Field(8 * 2**20, ge=1024, le=2**30, description="Largest request body.")
    max_connections: int = Field(10_000, ge=1, le=1_000_000, description="Clients connected at once.")
    probe_interval_s: float = Field(1.0, gt=0, le=60, description="How often each replica is looked at.")
    stall_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="A replica that carries calls and shows no progress for this long is taken out. "
        "Must be longer than the engine's longest step: a large chunk of prompt, or the first use of a feature, "
        "which vLLM may compile then (log-probabilities on a CPU: 17 s).",
    )
    reader_stall_s: float = Field(
        30.0, gt=0, le=3600, description="A client that leaves its stream unread for this long is disconnected."
    )
    drain_timeout_s: float = Field(
        300.0, ge=0, le=86_400, description="After SIGTERM, running streams have this long to end."
    )


class LedgerTable(_Table):
    """The books: keys, budgets, and an entry for everything that costs. Without this table nothing is billed."""

    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///.+|postgres(ql)?://.+)$")] = Field(
        description="Where entries and keys are kept: `sqlite:///books.db` on one box, "
        "`postgresql://user@host/name` for several."
    )
    spool: str = Field(
        "spool",
        description="A directory on a local disk, one for each gateway: entries are safe here before an answer ends, "
        "and stay until the store has them.",
    )
    spool_bytes: int = Field(
        2**30,
        ge=64 * 2**10,
        le=2**40,
        description="How much the spool may hold while the store is away; beyond, new calls are refused with 503.",
    )
    key_cache_s: float = Field(
        3600.0, ge=1, le=7 * 86_400, description="How long keys are believed while the store is away."
    )
    secret: str | None = Field(
        None,
        description="A file with the secret that signs the local copy of the keys and keeps tenants apart in the "
        "engines' caches. The same for all gateways of an engine; made beside the spool where none is named.",
    )


class PriceTable(_Table):
    """What standard costs, in the owner's currency; other tiers cost their multiple of it."""

    input: Annotated[float, Field(ge=0, le=1_000_000)] = Field(description="A million prompt tokens.")
    output: Annotated[float, Field(ge=0, le=1_000_000)] = Field(description="A million output tokens.")
    replica_hour: Annotated[float, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="What an hour of one replica costs the owner: `headway bill` shows the margin then."
    )


class TierTable(_Table):
    """One speed at which a model is offered."""

    name: Tier = Field(
        description="`fast` and `ultrafast`: the same weights at a promised floor. `standard`: the model as it is, no "
        "promise. `flex`: stand-by seats, after all others."
    )
    floor_tps: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Output tokens per second promised to every stream of `fast` or `ultrafast` after its first token.",
    )
    price_multiple: float | None = Field(
        None, gt=0, le=1000, description="What it costs as a multiple of standard; shown in `/v1/models`."
    )
    input_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Prompt tokens each key may send per minute in this tier; none: no limit."
    )
    output_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Output tokens each key may be given per minute in this tier."
    )
    max_hold_s: float = Field(30.0, ge=0, le=3600, description="How long a call waits for a seat before it is refused.")
    max_held: int = Field(
        1000, ge=0, le=1_000_000, description="How many calls may wait at once; beyond, they are refused at once."
    )

    @model_validator(mode="after")
    def _floor_where_promised(self) -> TierTable:
        if self.name in EXPRESS and self.floor_tps is None:
            raise ValueError(f"tier {self.name!r} is a promise: say which, as floor_tps = 40.0")
        if self.name not in EXPRESS and self.floor_tps is not None:
            raise ValueError(f"tier {self.name!r} promises nothing: take floor_tps out")
        return self


class ReplicaTable(_Table):
    """One vLLM server."""

    url: str = Field(description="Where it listens. Keep it on loopback or a private network.")
    kind: str = Field("vllm", description="The kind of engine; `vllm` is built in (docs/explanation/extend.md).")
    seats: int = Field(64, ge=1, le=4096, description="Streams it may carry at once: at most its `--max-num-seqs`.")

    prompt_tps: float | None = Field(
        None,
        gt=0,
        le=10_000_000,
        description="Prompt tokens it reads per second, as `headway calibrate` measures it. With it, calls whose "
        "prompts would cost the streams aboard their floor board elsewhere.",
    )
    curve: list[tuple[int, float]] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="What it was measured to give, as `[[streams, tokens per second of each], ...]`: three points are "
        "enough (`headway calibrate URL` measures them). Without it the replica carries no stream with a floor.",
    )

    @field_validator("curve", mode="before")
    @classmethod
    def _points(cls, curve: object) -> object:
        """TOML has arrays where the type has pairs, and may write a whole number for a speed."""
        if not isinstance(curve, list):
            return curve
        pairs = [(one[0], float(one[1])) for one in curve if isinstance(one, list) and len(one) == 2]
        if len(pairs) != len(curve) or any(batch < 1 or tps <= 0 for batch, tps in pairs):
            raise ValueError("must be like [[1, 120.0], [16, 80.0], [64, 37.0]]: streams, tokens per second of each")
        return pairs

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError('must be like "http://127.0.0.1:8001"')
        return url.rstrip("/")


class SpeculationTable(_Table):
    """Tokens guessed ahead and verified by the model itself: the same weights and distribution, in fewer steps."""

    method: Literal["ngram", "draft_model"] = Field(
        description="`ngram` guesses from the prompt and the answer so far; `draft_model` asks a smaller model."
    )
    tokens: int = Field(4, ge=1, le=16, description="Tokens guessed ahead of each step.")
    drafter: str | None = Field(None, description="The smaller model: a directory, or a name the hub knows.")
    by_streams: list[tuple[int, int, int]] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Other numbers of tokens for other batches, as `[[from, to, tokens], ...]`; 0 switches it off "
        "there. A full engine has no time to spare for wrong guesses.",
    )

    @field_validator("by_streams", mode="before")
    @classmethod
    def _ranges(cls, ranges: object) -> object:
        """TOML has arrays where the type has tuples."""
        if not isinstance(ranges, list):
            return ranges
        rows = [tuple(one) if isinstance(one, list) else () for one in ranges]
        whole = all(len(one) == 3 and all(isinstance(part, int) for part in one) for one in rows)
        if not whole or any(not 1 <= one[0] <= one[1] or not 0 <= one[2] <= 16 for one in rows):
            raise ValueError("must be like [[1, 8, 4], [9, 64, 0]]: from and to how many streams, tokens guessed")
        return rows

    @model_validator(mode="after")
    def _drafter_where_needed(self) -> SpeculationTable:
        if (self.method == "draft_model") != (self.drafter is not None):
            raise ValueError('method = "draft_model" and `drafter` go together')
        return self


class EngineTable(_Table):
    """How the model's engines are started: `headway engine` prints the commands. Headway itself starts none."""

    weights: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="What vLLM loads: a directory, or a name the hub knows."
    )
    prompt_chunk: int | None = Field(
        None,
        ge=64,
        le=1_000_000,
        description="Prompt tokens read in one step, at most. Less makes the pauses of other streams shorter and more "
        "frequent; their sum stays (docs/explanation/fast-mode.md). None leaves it to vLLM.",
    )
    speculation: SpeculationTable | None = Field(None, description="Guess ahead, where it pays.")


class KeepPromptsTable(_Table):
    """Keep what clients ask, to distill a student on it. Nothing is kept without this table: tell those who ask."""

    file: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="JSON lines for `headway distill collect`, readable by the owner alone."
    )
    share: float = Field(1.0, gt=0, le=1, description="Of the calls served to their end, so many by chance.")
    max_mb: int = Field(100, ge=1, le=100_000, description="The file grows no further.")
    keys: list[str] = Field(
        default_factory=list, max_length=1000, description="Only calls with these keys, by their ids; none: all calls."
    )


class AutoTable(_Table):
    """Offer `<model>-auto`: the student answers first, and this model where the student is not trusted."""

    calibration: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="The file that `headway auto calibrate` wrote: what is known of the student's mistakes."
    )
    student: str | None = Field(None, description="The model that answers first; none named: `<model>-spark`.")
    budget: float = Field(
        0.02,
        gt=0,
        lt=1,
        description="Excess mistakes, which the student makes and this model would not: at most this share of calls, "
        "with 95 % confidence.",
    )
    budgets: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict, max_length=1000, description="Other budgets for single keys, by their ids."
    )
    audit_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Of the calls that were weighed, so many by chance are asked of this model too, on `flex` seats "
        "where it has them, at the owner's cost; all of them while they give reason to. Where too many differ, the "
        "student is no longer trusted.",
    )


class ModelTable(_Table):
    """A model that clients may ask for by name."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="As clients ask for it, and as the engines serve it (`--served-model-name`)."
    )
    tiers: list[TierTable] = Field(
        default_factory=lambda: [TierTable(name="standard")], min_length=1, description="The speeds it is offered at."
    )
    standard_share: float = Field(
        0.5, ge=0, le=1, description="The part of its replicas whose doors stay open to standard calls."
    )
    replicas: list[ReplicaTable] = Field(min_length=1, description="The engines that serve it.")
    price: PriceTable | None = Field(None, description="What it costs; nothing where there is no price.")
    max_output_tokens: int = Field(
        4096,
        ge=1,
        le=2**20,
        description="The longest answer to a call that sets no limit itself, where its key has a budget: "
        "the most a call can cost must be known before it is served.",
    )
    engine: EngineTable | None = Field(None, description="How they are started, for `headway engine`.")
    keep_prompts: KeepPromptsTable | None = Field(None, description="For a student; off.")
    auto: AutoTable | None = Field(None, description="A student first, within a budget of mistakes.")

    @property
    def auto_name(self) -> str:
        return f"{self.name}-auto"

    @property
    def student_name(self) -> str:
        return (self.auto.student if self.auto is not None else None) or f"{self.name}-spark"

    @model_validator(mode="after")
    def _tiers_can_be_served(self) -> ModelTable:
        names = [tier.name for tier in self.tiers]
        _all_different(names, "tier")
        if "standard" not in names:
            raise ValueError(f"model {self.name!r} needs the tier standard: it is what all others are measured against")
        promised = [name for name in names if name in EXPRESS]
        if promised and not any(replica.curve for replica in self.replicas):
            raise ValueError(
                f"model {self.name!r} promises {promised[0]!r} and none of its replicas has a curve: "
                "measure one with `headway calibrate URL` and add what it prints"
            )
        return self


class Config(_Table):
    """The whole of headway.toml."""

    gateway: GatewayTable = Field(default_factory=GatewayTable, description="The endpoint itself.")
    ledger: LedgerTable | None = Field(None, description="Keys, budgets and bills.")
    models: list[ModelTable] = Field(min_length=1, description="What is served.")

    @model_validator(mode="after")
    def _keys_beyond_loopback(self) -> Config:
        host = self.gateway.host
        if not self.gateway.key_hashes and self.ledger is None and not _is_loopback(host):
            raise ValueError(
                f"gateway.host {host!r} can be reached from elsewhere and there are no keys: "
                'set host = "127.0.0.1", add key_hashes, or keep a ledger'
            )
        return self

    @model_validator(mode="after")
    def _students_are_here(self) -> Config:
        names = [model.name for model in self.models]
        for model in self.models:
            if model.auto is not None and (model.student_name not in names or model.student_name == model.name):
                raise ValueError(
                    f"model {model.name!r} has [models.auto] and its student {model.student_name!r} is no other model "
                    "here: add it (`headway distill publish` does), or name another with student = "
                )
        return self

    @model_validator(mode="after")
    def _names_and_urls_once(self) -> Config:
        autos = [model.auto_name for model in self.models if model.auto is not None]
        _all_different([*autos, *[model.name for model in self.models]], "model")
        _all_different([replica.url for model in self.models for replica in model.replicas], "replica")
        return self


def load(path: Path) -> Config:
    """Read and check a configuration; SetupError with one line per problem, each with its place and its mend."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}. Write one, or name another with --config.") from error
    return checked(path, text, Config)


def _all_different(names: Sequence[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} is there {names.count(name)} times: keep one")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
