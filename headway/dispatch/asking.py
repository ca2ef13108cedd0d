"""Ask a dispatcher one question: for the configuration, as a relay does before it serves, or for its status."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from headway.dispatch.address import Address
from headway.dispatch.endpoints import connect
from headway.dispatch.frames import PROTOCOL, AskStatus, FromDispatcher, Hello, Status, Turned, Welcome
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
        try:
            answer = await _ask(address, security, Hello(PROTOCOL, relay, ""))
            if isinstance(answer, Welcome):
                return answer.config
            why = "it does not answer"
        except ConnectionFailed as failed:
            why = failed.message
        if why != said:
            log.warning("no configuration from %s yet: %s", address, why)
        said = why
        await asyncio.sleep(random.uniform(*RETRY_S))


async def ask_status(address: Address, security: Security) -> Status:
    """Raises ConnectionFailed if the dispatcher does not tell it, and SetupError if `security` allows no link."""
    answer = await _ask(address, security, AskStatus(PROTOCOL))
    if not isinstance(answer, Status):
        raise ConnectionFailed("it does not answer")
    return answer


async def _ask(address: Address, security: Security, question: Hello | AskStatus) -> FromDispatcher:
    """The first message of the answer. Raises ConnectionFailed if there is none in time, or if it is Turned."""
    answers: list[_Answer] = []

    def meet(link: Link) -> _Answer:
        answers.append(_Answer(link, question))
        return answers[0]

    link = await connect(address, meet, security)
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await answers[0].told
    except TimeoutError:
        raise ConnectionFailed("it does not answer") from None
    finally:
        link.abort("it has answered, or does not")
    if isinstance(answer, Turned):
        raise ConnectionFailed(answer.why)
    if answer is None:
        raise ConnectionFailed("it closes the connection: is it the same version of Headway?")
    return answer


class _Answer:
    def __init__(self, link: Link, question: Hello | AskStatus) -> None:
        self.told: asyncio.Future[FromDispatcher | None] = asyncio.get_running_loop().create_future()
        link.send(question)

    def on_message(self, message: FromDispatcher) -> None:
        if not self.told.done():
            self.told.set_result(message)

    def on_lost(self, reason: str) -> None:  # noqa: ARG002
        if not self.told.done():
            self.told.set_result(None)
