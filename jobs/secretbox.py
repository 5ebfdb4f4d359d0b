"""Secrets at rest: encrypted with `SECRETS_KEY`, readable by whoever holds that key and by nobody else."""

import base64
import hashlib
from functools import cache

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

_PREPARED = "fernet:"  # begins a key that is to be used as it is


class Unreadable(ValueError):
    """The token was sealed with another `SECRETS_KEY`, or is damaged."""


def seal(secret: str) -> str:
    """The secret as a token that may be stored."""
    return _box(settings.SECRETS_KEY).encrypt(secret.encode()).decode()


def open_(token: str) -> str:
    """The secret of a token. Raises Unreadable."""
    try:
        return _box(settings.SECRETS_KEY).decrypt(token.encode()).decode()
    except InvalidToken:
        raise Unreadable("a secret cannot be read: it was encrypted with another SECRETS_KEY") from None


def opener() -> str:
    """A `SECRETS_KEY` for hosts: it opens what ours has sealed, and does not tell what ours is."""
    return _PREPARED + _prepared(settings.SECRETS_KEY).decode()


@cache
def _box(key: str) -> Fernet:
    return Fernet(_prepared(key))


def _prepared(key: str) -> bytes:
    if key.startswith(_PREPARED):
        return key.removeprefix(_PREPARED).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())
