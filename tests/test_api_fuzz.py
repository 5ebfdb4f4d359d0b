"""Every operation of the OpenAPI description, with values that fit it and values that do not: never a server error."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.models import Cluster
from portal.models import ApiToken
from tests import factories
from tests.rigs.redis import RedisServer
from tests.rigs.web import running_web


@pytest.fixture
def described(transactional_db: None, redis_server: RedisServer) -> Iterator[Any]:
    """The description as a real web process serves it, and the token of alice, who has a job to ask about."""
    alice = factories.make_user("alice", teams=(factories.make_team("vision"),))
    factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
    Cluster.get()
    secret = ApiToken.issue(alice, name="fuzz", scope="write", expires_at=None)[1]
    headers = {"Authorization": f"Bearer {secret}"}
    with running_web() as web:
        yield schemathesis.openapi.from_url(f"{web.url}/api/openapi.json", headers=headers), headers


def test_no_request_makes_the_server_fail(described: Any) -> None:
    schema, headers = described
    operations = [found.ok() for found in schema.get_all_operations()]
    tried = [operation for operation in operations if operation.path != "/api/login"]  # which would end the token
    assert len(tried) > 12
    for operation in tried:
        _try(operation, headers)
    assert ApiToken.objects.get().last_used_at is not None


def _try(operation: Any, headers: dict[str, str]) -> None:
    fitting = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    other = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(fitting, other))
    def check(case: Any) -> None:
        answer = case.call(headers=headers)
        assert answer.status_code < 500, f"{operation.label}: {case.as_curl_command()}"
        if answer.status_code in (400, 401, 403, 422):
            assert all(error["code"] and error["message"] for error in answer.json()["errors"])

    check()
