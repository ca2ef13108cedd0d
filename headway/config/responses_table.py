"""The table [responses] of headway.toml: which responses of /v1/responses are stored, and its WebSocket."""

from __future__ import annotations

from pydantic import Field

from headway.config.table import Table


class ResponsesTable(Table):
    """Responses that `previous_response_id` can continue, encrypted in the store of the `[ledger]`, if there is one."""

    store: bool = Field(
        default=True,
        description="Store responses, unless a request says `store: false`. If false, none are stored and "
        "`previous_response_id` is refused.",
    )
    keep_days: float = Field(7.0, gt=0, le=365, description="How long a response is stored.")
    max_response_bytes: int = Field(
        2 * 2**20,
        ge=1024,
        le=64 * 2**20,
        description="Maximum size of a response with the conversation that led to it. Larger ones are not stored.",
    )
    max_bytes_per_key: int = Field(
        64 * 2**20,
        ge=1024,
        le=2**40,
        description="Maximum size of all stored responses of a key, as they are in the store. The oldest are deleted.",
    )
    websocket: bool = Field(
        default=True,
        description="Offer the WebSocket on `GET /v1/responses`. If false, it answers 426 and clients such as Codex "
        "use `POST` at once.",
    )
    max_sockets: int = Field(
        4096, ge=1, le=1_000_000, description="Maximum number of open WebSockets. Further ones get 503."
    )
    max_sockets_per_key: int = Field(
        256, ge=1, le=1_000_000, description="The same for the WebSockets of one key. Further ones get 429."
    )
    max_socket_memory_bytes: int = Field(
        256 * 2**20,
        ge=0,
        le=2**40,
        description="Maximum size, in all, of the conversations that open WebSockets remember. If there are more, the "
        "oldest of the key with the most bytes is forgotten, and its client has to send the whole conversation.",
    )
