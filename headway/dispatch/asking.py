"""Ask the dispatcher that leads for the configuration. A relay does this before it serves."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from headway.dispatch.address import Address
from headway.dispatch.endpoints import connect
from headway.dispatch.frames import PROTOCOL, FromDispatcher, Hello, Turned, Welcome
from headway.dispatch.link import Link
from headway.dispatch.security import Security
from headway.errors import ConnectionFailed

log = logging.getLogger("headway.dispatch")

ANSWER_S = 1.0
RETRY_S = (0.1, 0.3)


async def ask_config(addresses: Sequence[Address], security: Security, relay: str) -> str:
    """The text of the configuration, as soon as one of the dispatchers leads. Raises SetupError if `security` allows no
    link."""
    asking = [asyncio.create_task(_ask_until_told(address, security, relay)) for address in addresses]
    try:
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _ask_until_told(address: Address, security: Security, relay: str) -> str:
    said = ""
    while True:
        why = "it does not answer"
        answers: list[_Answer] = []

        def meet(link: Link, answers: list[_Answer] = answers) -> _Answer:
            answers.append(_Answer(link, relay))
            return answers[0]

        try:
            await connect(address, meet, security)
            async with asyncio.timeout(ANSWER_S):
                answer = await answers[0].told
            if isinstance(answer, Welcome):
                return answer.config
            why = answer.why if answer is not None else why
        except ConnectionFailed as failed:
            why = failed.message
        except TimeoutError:
            answers[0].link.abort(why)
        if why != said:
            log.warning("no configuration from %s yet: %s", address, why)
        said = why
        await asyncio.sleep(random.uniform(*RETRY_S))


class _Answer:
    def __init__(self, link: Link, relay: str) -> None:
        self.link = link
        self.told: asyncio.Future[Welcome | Turned | None] = asyncio.get_running_loop().create_future()
        link.send(Hello(PROTOCOL, relay, ""))

    def on_message(self, message: FromDispatcher) -> None:
        if isinstance(message, Welcome | Turned) and not self.told.done():
            self.told.set_result(message)
            self.link.close("it has answered")

    def on_lost(self, reason: str) -> None:  # noqa: ARG002
        if not self.told.done():
            self.told.set_result(None)
