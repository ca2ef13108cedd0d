"""What happens if Headway itself fails: it is logged, and the client is told in its dialect as of any other error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headway.api.sparse_log import SparseLog
from headway.errors import HeadwayError, InternalError


class FaultLog:
    def __init__(self) -> None:
        self._log = SparseLog(logging.ERROR)

    @contextmanager
    def as_errors(self, call_id: str) -> Iterator[None]:
        """Log an error that nobody expected, and raise InternalError instead."""
        try:
            yield
        except HeadwayError:
            raise
        except Exception as error:
            self._log.write(f"call {call_id} failed", error)
            raise InternalError from error
