"""Collected only where `make test-gpu` has found a driver with a GPU."""

import os

collect_ignore_glob = [] if os.environ.get("TEST_GPU") else ["test_*.py"]
