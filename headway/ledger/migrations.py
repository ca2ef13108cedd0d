"""The migrations of the store: each has a name, runs once, in this order, and is never edited afterwards.

Plain SQL for both SQLite and PostgreSQL. Tables only gain columns that are nullable or have a default, so that gateways
of the previous version can keep writing during a rollout.
"""

from __future__ import annotations

MIGRATIONS: dict[str, tuple[str, ...]] = {
    "2026-11-15-entries": (
        """CREATE TABLE entries (
            id TEXT PRIMARY KEY, call_id TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
            at_us BIGINT NOT NULL, day TEXT NOT NULL, gateway TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
            replica TEXT NOT NULL, tier_asked TEXT NOT NULL, tier TEXT NOT NULL, input_price BIGINT NOT NULL,
            output_price BIGINT NOT NULL, multiple_milli BIGINT NOT NULL, amount BIGINT NOT NULL,
            outcome TEXT NOT NULL, prompt_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, seat_us BIGINT NOT NULL
        )""",
        "CREATE INDEX entries_by_call ON entries (call_id)",
        "CREATE INDEX entries_by_day ON entries (day, key)",
        "CREATE INDEX entries_by_gateway ON entries (gateway, key, day)",
    ),
    "2026-11-15-keys": (
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, version BIGINT NOT NULL, key_json TEXT NOT NULL
        )""",
        "CREATE INDEX keys_by_version ON keys (version)",
    ),
    "2026-11-15-slices": (
        """CREATE TABLE slices (
            id TEXT PRIMARY KEY, key TEXT NOT NULL, period TEXT NOT NULL, gateway TEXT NOT NULL,
            amount BIGINT NOT NULL, at_us BIGINT NOT NULL
        )""",
        "CREATE INDEX slices_by_period ON slices (key, period)",
        "CREATE INDEX slices_by_gateway ON slices (gateway)",
    ),
    "2026-11-15-auto": (
        "ALTER TABLE entries ADD COLUMN auto TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE entries ADD COLUMN all_full BIGINT NOT NULL DEFAULT 0",
    ),
    "2026-11-16-cached-tokens": ("ALTER TABLE entries ADD COLUMN cached_tokens BIGINT",),
    "2026-11-17-gateways": (
        "CREATE TABLE gateways (name TEXT PRIMARY KEY, number BIGINT NOT NULL, nonce TEXT NOT NULL)",
    ),
    "2026-11-17-undelivered": ("ALTER TABLE entries ADD COLUMN undelivered BIGINT",),
    "2026-11-17-audits": (
        """CREATE TABLE audits (
            gateway TEXT NOT NULL, model TEXT NOT NULL, calibration TEXT NOT NULL, number BIGINT NOT NULL,
            budget TEXT NOT NULL, asked_us BIGINT NOT NULL, sealed TEXT, verdict TEXT,
            PRIMARY KEY (gateway, model, calibration, number)
        )""",
        "CREATE INDEX audits_waiting ON audits (asked_us) WHERE verdict IS NULL",
    ),
    "2026-11-17-cached-price": ("ALTER TABLE entries ADD COLUMN cached_price BIGINT",),
    "2026-11-17-sessions": (
        "ALTER TABLE entries ADD COLUMN session TEXT",
        "ALTER TABLE entries ADD COLUMN agent TEXT",
    ),
    "2026-11-17-responses": (
        """CREATE TABLE responses (
            tenant TEXT NOT NULL, id TEXT NOT NULL, at_us BIGINT NOT NULL, bytes BIGINT NOT NULL, sealed TEXT NOT NULL,
            PRIMARY KEY (tenant, id)
        )""",
        "CREATE INDEX responses_by_age ON responses (at_us)",
    ),
    "2026-11-19-repeated": ("ALTER TABLE entries ADD COLUMN repeated BIGINT",),
}
