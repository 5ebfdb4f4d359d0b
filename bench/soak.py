"""The product for half an hour: jobs come and go with all who watch them; then whatever came with them must be gone.

Memory, files, threads and processes of each role, connections, keys in Redis, rows that are there for a while only,
containers, mounts and spools: measured after a warm-up whose jobs have all ended, and again at the end. Whatever is
higher then is named, and it fails; so it does for any wrong answer, lost job, broken log or error in the product's own
logs. `MINUTES` is its length, `WARM_MINUTES` that of the warm-up; `PEOPLE` and `EVERY` (seconds between two jobs of one
person) make more or less of it.
"""

from bench._postgres import run_on_postgres

if __name__ == "__main__":
    raise SystemExit(run_on_postgres("bench._soak"))
