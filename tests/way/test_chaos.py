"""A short campaign of chaos: every kind of job, while each kind of fault strikes once; `make chaos` is the long one."""

from typing import Any

import pytest

from tests.chaos import campaign
from tests.rigs.engine import can_run

pytestmark = pytest.mark.e2e
JOBS, SECONDS, SEED = 14, 20.0, 7


@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_left_while_every_part_is_killed(
    tmp_path: Any, redis_server: Any, django_db_blocker: Any
) -> None:
    """rq/rq#1846, #2015, codalab/codalab-worksheets#2990, moby/moby#23213: each alone lost jobs, logs or GPUs."""
    assert can_run() == ""
    with django_db_blocker.unblock(), campaign.running_hosts(tmp_path, ("alpha", "beta")) as site:
        outcome = campaign.run_briefly(site, jobs=JOBS, seconds=SECONDS, seed=SEED, drain=180)
        row = campaign.report(outcome, seed=SEED)
        assert outcome.is_clean, (
            campaign.text(row)
            + site.portal.log_of("scheduler")
            + "".join(host.log_tail() for host in site.hosts.values())
        )
    assert row["jobs"] == JOBS
    assert len(row["faults"]) == 15
    assert all(fault["count"] == 1 for fault in row["faults"].values())
