"""Both sides of a link prove that they have the shared secret, before any message.

    dispatcher -> relay   challenge: 32 random bytes
    relay -> dispatcher   nonce: 32 random bytes, and HMAC-SHA256(secret, "relay" challenge nonce)
    dispatcher -> relay   HMAC-SHA256(secret, "dispatcher" challenge nonce)

Each side's random bytes are part of both proofs, so a recorded proof is of no use. The role is part of it too, so a
proof cannot be sent back to its sender. Knows no sockets: frames in, frames out.
"""

from __future__ import annotations

import hmac
import os
from typing import Literal

from headway.dispatch.security import SharedSecret
from headway.errors import ConnectionFailed

NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_HANDSHAKE_FRAME = NONCE_BYTES + PROOF_BYTES


class DispatcherHandshake:
    def __init__(self, secret: SharedSecret) -> None:
        self.is_done = False
        self._secret = secret
        self._challenge = os.urandom(NONCE_BYTES)

    def start(self) -> bytes:
        """Returns the first frame to send; empty if there is none."""
        return self._challenge

    def receive(self, frame: bytes) -> bytes:
        """Returns the frame to send; empty if there is none. Raises ConnectionFailed if the proof is wrong."""
        nonce, proof = frame[:NONCE_BYTES], frame[NONCE_BYTES:]
        _check(proof, _prove(self._secret, "relay", self._challenge, nonce))
        self.is_done = True
        return _prove(self._secret, "dispatcher", self._challenge, nonce)


class RelayHandshake:
    def __init__(self, secret: SharedSecret) -> None:
        self.is_done = False
        self._secret = secret
        self._challenge = b""
        self._nonce = os.urandom(NONCE_BYTES)

    def start(self) -> bytes:
        return b""

    def receive(self, frame: bytes) -> bytes:
        if self._challenge:
            _check(frame, _prove(self._secret, "dispatcher", self._challenge, self._nonce))
            self.is_done = True
            return b""
        if len(frame) != NONCE_BYTES:
            raise ConnectionFailed("the other side does not ask for a shared secret")
        self._challenge = frame
        return self._nonce + _prove(self._secret, "relay", self._challenge, self._nonce)


Handshake = DispatcherHandshake | RelayHandshake


def _prove(secret: SharedSecret, role: Literal["relay", "dispatcher"], challenge: bytes, nonce: bytes) -> bytes:
    text = b"headway link 1, %b\n%b%b" % (role.encode(), challenge, nonce)
    return hmac.digest(secret.value, text, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise ConnectionFailed("the other side does not have the same shared secret")
