"""The trace context of a request: the headers `traceparent` and `tracestate` of the W3C.

A header that is not valid, or too long, is taken for none. The state counts only beside a parent.
"""

from __future__ import annotations

import re

from headway.api.dialect import Headers
from headway.wire import NO_TRACE, Trace

# Version, trace id, parent id, flags. Version ff and ids of zeros are not valid.
PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
STATE = re.compile(rb"[\x20-\x7e]{1,512}")


def read_trace(headers: Headers) -> Trace:
    parent = headers.get(b"traceparent")
    if parent is None or not PARENT.fullmatch(parent):
        return NO_TRACE
    state = headers.get(b"tracestate", b"")
    return Trace(parent.decode(), state.decode() if STATE.fullmatch(state) else "")
