"""Every operation of the OpenAPI description, with values that fit it and values that do not: never a server error.

As a user and as an administrator, mostly about jobs that are there, so that what passes the checks is tried too; and
every answer is as the description says. FUZZ=100 tries a hundred times as much.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance

from jobs import logstore
from jobs.models import Cluster, Job
from jobs.states import EndReason, JobState
from portal.models import ApiToken
from tests import factories
from tests.rigs.redis import RedisServer
from tests.rigs.web import running_web

MORE = int(os.environ.get("FUZZ", "1"))
Described = tuple[Any, list[dict[str, str]], list[int]]


@pytest.fixture
def described(transactional_db: None, redis_server: RedisServer) -> Iterator[Described]:
    """The description as a real web process serves it, the tokens of alice and of an administrator, and her jobs."""
    alice = factories.make_user("alice", teams=(factories.make_team("vision"),))
    run = factories.make_run(factories.make_job(alice), factories.make_node("alpha"))
    logstore.save(run.pk, 0, 0, b"one\ntwo\n").save()
    factories.make_job(alice, wait_reasons=[{"code": "PAUSED", "reason": "x"}])
    factories.make_job(alice, state=JobState.FAILED, end_reason=EndReason.EXIT_CODE, exit_code=1)
    Cluster.get()
    people = (alice, factories.make_admin())
    secrets = [ApiToken.issue(user, name="fuzz", scope="write", expires_at=None)[1] for user in people]
    headers = [{"Authorization": f"Bearer {secret}"} for secret in secrets]
    with running_web() as web:
        schema = schemathesis.openapi.from_url(f"{web.url}/api/openapi.json", headers=headers[0])
        yield schema, headers, list(Job.objects.values_list("pk", flat=True))


def test_no_request_makes_the_server_fail(described: Described) -> None:
    schema, headers, jobs = described
    operations = [found.ok() for found in schema.get_all_operations()]
    tried = [operation for operation in operations if operation.path != "/api/login"]  # which would end the token
    assert len(tried) > 12
    for operation in tried:
        _try(operation, headers, jobs)
    assert ApiToken.objects.exclude(last_used_at=None).count() == 2


def _try(operation: Any, headers: list[dict[str, str]], jobs: list[int]) -> None:
    fitting = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    other = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    job = st.one_of(*[st.sampled_from(jobs)] * 3, st.none())

    @settings(
        max_examples=6 * MORE, deadline=None, database=None, derandomize=MORE == 1,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.one_of(fitting, other), st.sampled_from(headers), job)
    def check(case: Any, who: dict[str, str], there: int | None) -> None:
        if there is not None and "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = there
        answer = case.call(headers=who)
        about = f"{operation.label}: {answer.status_code} {case.as_curl_command()} {answer.text[:300]}"
        assert answer.status_code < 500, about
        if answer.status_code in (400, 401, 403, 404, 422):
            assert all(error["code"] and error["message"] for error in answer.json()["errors"]), about
        if answer.status_code < 300 and answer.headers["content-type"][0].startswith("application/json"):
            case.validate_response(answer, checks=[response_schema_conformance])

    check()
