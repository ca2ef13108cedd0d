"""How commands and a fleet talk to a running gateway's `/admin`. With Python's own client: `headway check` loads this,
and most often asks nobody."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from headway.errors import SetupError

ANSWER_S = 10.0
MAX_ANSWER_BYTES = 64 * 2**20
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a key must not pass through a proxy


def ask_admin(gateway: str, key: str, path: str, body: bytes | None = None) -> dict[str, Any]:
    """The gateway's answer to GET, or to POST if there is a body. Raises SetupError with what it says or what to do."""
    if not key:
        raise SetupError("An admin key is needed: set HEADWAY_ADMIN_KEY to a key whose hash is in `admin_key_hashes`.")
    headers = {"x-api-key": key, "content-type": "application/json"}
    try:
        request = urllib.request.Request(gateway.rstrip("/") + path, body, headers)
        with _opener.open(request, timeout=ANSWER_S) as answer:
            status, said = answer.status, answer.read(MAX_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            status, said = error.code, error.read(MAX_ANSWER_BYTES)
    except (OSError, ValueError) as error:  # URLError is an OSError; a URL without a scheme is a ValueError
        raise SetupError(f"The gateway at {gateway} does not answer: {error}.") from error
    try:
        told: dict[str, Any] = json.loads(said)
        if status == 200:
            return told
        message = told["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise SetupError(f"{gateway} answers with status {status}, but not as Headway does.") from None
    raise SetupError(f"{gateway} says: {message}")
