"""What holds for every test in a browser."""

from playwright.sync_api import expect

expect.set_options(timeout=30_000)  # milliseconds: a busy machine shows a page late
