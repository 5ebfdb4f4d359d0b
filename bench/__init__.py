"""Benchmarks: each prints one JSON line with its ratio to a reference measured in the same run."""
