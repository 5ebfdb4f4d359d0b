"""A shell of alice's, and the web process that her commands speak to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from jobs.models import Cluster
from portal.models import User
from tests import factories
from tests.rigs.redis import RedisServer
from tests.rigs.shell import Shell
from tests.rigs.web import Web, running_web


@pytest.fixture(scope="module")
def web(django_db_setup: None, django_db_blocker: Any, redis_server: RedisServer) -> Iterator[Web]:
    with django_db_blocker.unblock(), running_web() as server:
        yield server


@pytest.fixture
def team_of_alice(transactional_db: None) -> User:
    """Alice, with a password hashed as the web process reads it (the tests' own hasher is another), cheaply."""
    alice = factories.make_user("alice", teams=(factories.make_team("vision"),))
    alice.password = PBKDF2PasswordHasher().encode(factories.PASSWORD, "salt", iterations=1)
    alice.save()
    Cluster.get()  # here, since its audit entry in the web process would name content types from before a flush
    return alice


@pytest.fixture
def shell(web: Web, team_of_alice: User, tmp_path: Path) -> Shell:
    return Shell(tmp_path, web.url, team_of_alice)
