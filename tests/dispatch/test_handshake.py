"""Both sides prove the shared secret, and nothing that was heard or sent back proves it."""

from __future__ import annotations

import pytest

from headway.dispatch.handshake import MAX_HANDSHAKE_FRAME, DispatcherHandshake, RelayHandshake
from headway.dispatch.security import SharedSecret
from headway.errors import ConnectionFailed, SetupError

SECRET = SharedSecret(b"s" * 32)
OTHER = SharedSecret(b"o" * 32)


def test_both_prove_that_they_have_the_secret() -> None:
    dispatcher, relay = DispatcherHandshake(SECRET), RelayHandshake(SECRET)
    assert relay.start() == b""
    proof = relay.receive(dispatcher.start())
    assert not relay.is_done
    answer = dispatcher.receive(proof)
    assert dispatcher.is_done
    assert relay.receive(answer) == b""
    assert relay.is_done
    assert max(map(len, (dispatcher.start(), proof, answer))) <= MAX_HANDSHAKE_FRAME


def test_a_relay_with_another_secret_is_refused() -> None:
    dispatcher, relay = DispatcherHandshake(SECRET), RelayHandshake(OTHER)
    with pytest.raises(ConnectionFailed, match="the same shared secret"):
        dispatcher.receive(relay.receive(dispatcher.start()))
    assert not dispatcher.is_done


def test_a_dispatcher_with_another_secret_is_refused() -> None:
    relay = RelayHandshake(SECRET)
    proof = relay.receive(b"c" * 32)
    with pytest.raises(ConnectionFailed, match="the same shared secret"):
        relay.receive(proof[:32])
    assert not relay.is_done


def test_a_proof_sent_back_to_its_sender_is_refused() -> None:
    """A false dispatcher has no secret: it returns what the relay sent. The roles in the proofs differ."""
    relay = RelayHandshake(SECRET)
    proof = relay.receive(b"c" * 32)
    with pytest.raises(ConnectionFailed):
        relay.receive(proof[32:])


def test_a_challenge_answered_by_another_dispatcher_is_refused() -> None:
    """A false relay lets a true dispatcher prove the challenge: the answer is a dispatcher's, not a relay's."""
    dispatcher, relay = DispatcherHandshake(SECRET), RelayHandshake(SECRET)
    challenge = dispatcher.start()
    honest = relay.receive(challenge)
    answer = DispatcherHandshake.receive(dispatcher, honest)
    again = DispatcherHandshake(SECRET)
    again._challenge = challenge
    with pytest.raises(ConnectionFailed):
        again.receive(honest[:32] + answer)


def test_a_recorded_proof_is_refused() -> None:
    dispatcher, relay = DispatcherHandshake(SECRET), RelayHandshake(SECRET)
    recorded = relay.receive(dispatcher.start())
    answer = dispatcher.receive(recorded)
    with pytest.raises(ConnectionFailed):
        DispatcherHandshake(SECRET).receive(recorded)
    later = RelayHandshake(SECRET)
    later.receive(dispatcher.start())
    with pytest.raises(ConnectionFailed):
        later.receive(answer)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 63, 64, 65])
def test_frames_of_any_length_are_refused(length: int) -> None:
    with pytest.raises(ConnectionFailed):
        DispatcherHandshake(SECRET).receive(b"x" * length)
    relay = RelayHandshake(SECRET)
    if length != 32:
        with pytest.raises(ConnectionFailed, match="does not ask for a shared secret"):
            relay.receive(b"x" * length)


def test_a_short_secret_is_refused_and_none_is_shown() -> None:
    with pytest.raises(SetupError, match="openssl rand -hex 32"):
        SharedSecret(b"short")
    assert "sss" not in repr(SECRET)
