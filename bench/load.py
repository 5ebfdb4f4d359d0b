"""Two hundred jobs run on eleven hosts, and fifty people look at pages, follow logs over sockets and send more jobs.

On real parts in production settings: PostgreSQL, an engine a host with simulated GPUs, all on this machine. First a few
look alone, which is the reference; then all. Any answer that is wrong, socket that closes, log with a gap or a double,
job that is lost or ends otherwise, and error in the product's own logs counts; memory of each role must stay flat.
`JOBS`, `PEOPLE`, `SECONDS`, `STAY` (mean seconds on a page) and `EVERY` (seconds between two jobs of one person) make
more or less of it.
"""

from bench._postgres import run_on_postgres

if __name__ == "__main__":
    raise SystemExit(run_on_postgres("bench._load"))
