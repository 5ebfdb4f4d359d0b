"""Tests on this machine's own NVIDIA driver: only `make test-gpu` collects them."""
