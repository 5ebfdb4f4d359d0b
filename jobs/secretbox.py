"""Secrets at rest: encrypted with `SECRETS_KEY`, readable by whoever holds that key and by nobody else."""

import base64
import hashlib
from functools import cache

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


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


@cache
def _box(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))
