"""Passwords hashed as the product hashes them, but in no time."""

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class Quick(PBKDF2PasswordHasher):
    """The product's own hasher reads what this one writes: only the number of rounds differs."""

    iterations = 1
