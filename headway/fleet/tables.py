"""The tables of fleet.toml: which processes there should be, what each needs, and where engines are registered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator, model_validator

from headway.config.checks import checked
from headway.config.table import Table
from headway.config.urls import http_url
from headway.errors import SetupError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Amount = Annotated[float, Field(ge=0, le=1_000_000)]
MAX_COUNT = 10_000


@dataclass(frozen=True)
class Times:
    """How long a holder waits for its process. They can change while the process runs."""

    start_s: float
    unhealthy_s: float
    grace_s: float


class FleetGatewayTable(Table):
    """The gateway at which engines are registered."""

    url: str = Field(
        description="URL of the gateway, or of what stands in front of its relays. It must pass `/admin` on to a relay "
        "that is not ready: none is before the first engine is registered."
    )
    admin_key_file: Word = Field(
        description="File with a key whose hash is in `admin_key_hashes`. It must be readable on each node on which "
        "Ray may start the fleet's actor: the key itself is not sent to Ray."
    )

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return http_url(url)


class ScalingTable(Table):
    """Let the number of processes follow the demand for their model."""

    min_count: int = Field(1, ge=1, le=MAX_COUNT, description="Number of processes that there are at least.")
    max_count: int = Field(ge=1, le=MAX_COUNT, description="Number of processes that there are at most.")
    opens_after_s: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="Time from the start of an engine until the gateway opens it, as you have seen it. Demand is "
        "forecast for so long.",
    )

    @model_validator(mode="after")
    def _some_room(self) -> ScalingTable:
        if self.min_count > self.max_count:
            raise ValueError("min_count must not be above max_count")
        return self


class ProcessTable(Table):
    """One or more processes with the same command."""

    name: Name = Field(description="Name, in small letters, digits and hyphens. A process is `NAME-INDEX`.")
    command: list[Word] = Field(
        min_length=1,
        max_length=200,
        description="Program and arguments. `{host}` becomes the address of the node, `{port}` the port of this "
        "process and `{index}` its number, from 0.",
    )
    model: Word | None = Field(
        None,
        description="Model of headway.toml whose engine this is. It needs `[models.discover]` with "
        "`registered = true`. Leave it out for processes that are no engines.",
    )
    count: int = Field(1, ge=0, le=MAX_COUNT, description="Number of processes. With `scaling`, the number at first.")
    port: int = Field(
        ge=1,
        le=65_535,
        description="Port of the process with the index 0; the others follow. Keep one more than `count` free: "
        "an engine that is replaced keeps its port until its streams have ended.",
    )
    ready: Annotated[str, StringConstraints(pattern=r"^(/.{0,200})?$")] = Field(
        "/health",
        description="Path that answers 200 while the process can serve. Empty if it has none: then it is ready when it "
        "runs.",
    )
    start_s: float = Field(
        900.0,
        ge=1,
        le=86_400,
        description="Time within which it must be ready; after that it is started again. A change of this and of the "
        "next two settings replaces nothing: they hold from the next second on.",
    )
    unhealthy_s: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="A process that was ready and does not answer at `ready` for so long is started again.",
    )
    grace_s: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Time from SIGTERM to SIGKILL. For a relay, more than its `drain_timeout_s`: it ends its streams "
        "in that time.",
    )
    cpus: Amount = Field(1.0, description="CPUs of a node, as Ray counts them. Ray sets OMP_NUM_THREADS to it.")
    gpus: Amount = Field(
        0.0, description="GPUs of one node. With tensor parallelism, as many as its size. Below 1 it shares one."
    )
    memory_gb: Amount = Field(0.0, description="Memory of a node in GB, as Ray counts it. 0 asks for none.")
    resources: dict[Word, Amount] = Field(default_factory=dict, description="Other resources of a node, by name.")
    labels: dict[Word, Word] = Field(default_factory=dict, description="Labels that the node must have.")
    env: dict[Word, str] = Field(default_factory=dict, description="Variables added to the environment.")
    scaling: ScalingTable | None = Field(None, description="Follow the demand. A fixed number if not set.")

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError("must be a whole number, or below 1 to share a GPU")
        return gpus

    @model_validator(mode="after")
    def _fits(self) -> ProcessTable:
        if self.scaling is not None and self.model is None:
            raise ValueError(f"processes {self.name!r} have no `model`, whose demand they could follow: remove scaling")
        if self.port + self.most > 65_535:
            raise ValueError(
                f"processes {self.name!r} need {self.most + 1} ports from {self.port} on: choose a lower port"
            )
        return self

    @property
    def most(self) -> int:
        """Number of processes that may be wanted."""
        return self.scaling.max_count if self.scaling is not None else self.count

    @property
    def times(self) -> Times:
        return Times(self.start_s, self.unhealthy_s, self.grace_s)

    @property
    def version(self) -> str:
        """Another one if a process must be replaced to be as this table says. Settings that are not set do not count:
        a release of Headway with one more replaces nothing."""
        same = self.model_dump(
            mode="json", exclude={"count", "scaling", "start_s", "unhealthy_s", "grace_s"}, exclude_defaults=True
        )
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]

    def words(self, host: str, index: int) -> list[str]:
        """The command of the process with this index."""
        values = {"{host}": host, "{port}": str(self.port + index), "{index}": str(index)}
        words = list(self.command)
        for mark, value in values.items():
            words = [word.replace(mark, value) for word in words]
        return words


class FleetTable(Table):
    """The processes that run on the nodes of a cluster, and the gateway at which engines are registered."""

    gateway: FleetGatewayTable = Field(description="Where engines are registered.")
    processes: list[ProcessTable] = Field(min_length=1, max_length=100, description="What runs on the nodes.")

    @model_validator(mode="after")
    def _apart(self) -> FleetTable:
        names = [one.name for one in self.processes]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"processes need different names: {', '.join(sorted(twice))}")
        for one, other in pairwise(sorted(self.processes, key=lambda one: one.port)):
            if one.port + one.most >= other.port:
                raise ValueError(
                    f"processes {one.name!r} need the ports {one.port} to {one.port + one.most}, and {other.name!r} "
                    f"those from {other.port} on: choose ports that are further apart"
                )
        return self


def load_fleet(path: Path) -> FleetTable:
    """Raises SetupError with one line per problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}. Create the file, or name another one.") from error
    return checked(path, text, FleetTable)
