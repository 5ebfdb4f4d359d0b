"""The settings of an agent process in a test: the product's own, on the test's database."""

import json
import os

from portal.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["LOG_AGENT_DATABASE"])}
