"""Encrypts what waits in the store for a while, so that whoever reads the store, or a backup of it, cannot read it.

AES-256-GCM. The key is derived from the owner's secret (keys.py), which is in a file and never in the store. A sealed
text can be opened only under the name that it was sealed for, so a row cannot be exchanged for another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

NONCE_BYTES = 12


class SealBroken(Exception):
    """The text was sealed with another secret or under another name, or it was changed."""


class Sealer:
    def __init__(self, secret: bytes) -> None:
        # Here: gateways without an auto model need not load it.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(hmac.new(secret, b"sealing\n", hashlib.sha256).digest())
        self._broken = InvalidTag

    def seal(self, plain: bytes, name: str) -> str:
        nonce = os.urandom(NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, plain, name.encode())).decode()

    def open(self, sealed: str, name: str) -> bytes:
        try:
            raw = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], name.encode())
        except (self._broken, binascii.Error, ValueError) as error:
            raise SealBroken(name) from error
