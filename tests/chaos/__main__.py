"""`make chaos`: a campaign on three hosts. By environment: JOBS, MINUTES, SEED, REPORT (a file for the JSON)."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django

django.setup()

import json
import logging
import sys
import tempfile
from pathlib import Path

from tests.chaos import campaign
from tests.rigs.engine import can_run

logging.getLogger("httpx").setLevel(logging.WARNING)
logging.getLogger("portal.live").setLevel(logging.ERROR)  # of news that this process itself has for nobody


def main() -> int:
    """Exit status 0 only if nothing was lost, doubled, wrong or left. Prints the report; standard output is JSON."""
    if why_not := can_run():
        print(f"cannot start private Docker engines: {why_not}", file=sys.stderr)
        return 2
    jobs, minutes = int(os.environ.get("JOBS") or 300), float(os.environ.get("MINUTES") or 10)
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(3)))
    print(f"{jobs} jobs, {minutes:g} minutes, SEED={seed}", file=sys.stderr, flush=True)
    root = Path(tempfile.mkdtemp(prefix="dky-chaos-"))
    with campaign.running_hosts(root) as site:
        outcome = campaign.run(site, jobs=jobs, seconds=60 * minutes, seed=seed, pause=(1, 6))
    row = campaign.report(outcome, seed=seed)
    campaign.write(row, Path(os.environ.get("REPORT") or "tests/artifacts/chaos.json"))
    print(campaign.text(row), file=sys.stderr)
    print(f"the hosts' and the portal's own logs, and what the observers saw: {root}", file=sys.stderr)
    print(json.dumps(row))
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
