"""A hundred no-op jobs of one GPU on four, posted over HTTP, against docker-py with four threads doing the same."""

import contextlib
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from bench._report import report, say
from bench._rig import Client, Product, create_arguments, median, product

ROUNDS, JOBS, THREADS = 3, 100, 4
SCRIPT = "true"


def ours(product: Product) -> float:
    """Jobs a second, from the first post to the last end that is committed with its whole log."""
    begun = time.perf_counter()
    jobs = [product.post(SCRIPT, gpus=1) for _ in range(JOBS)]
    rate = JOBS / (product.when_ended(jobs) - begun)
    product.settle()
    return rate


def theirs(product: Product) -> float:
    """Jobs a second of create + start + wait + remove."""

    def some(count: int) -> None:
        with contextlib.closing(Client(product.docker_url)) as client:
            for _ in range(count):
                made = client.create_container_from_config(create_arguments(SCRIPT), f"reference-{uuid.uuid4().hex}")
                client.start(made["Id"])
                client.wait(made["Id"])
                client.remove_container(made["Id"])

    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(some, [JOBS // THREADS] * THREADS))
    return JOBS / (time.perf_counter() - begun)


def main() -> None:
    rounds = []
    with product() as running:
        for number in range(ROUNDS):
            rounds.append((ours(running), theirs(running)))
            say(f"round {number + 1}: ours {rounds[-1][0]:.2f}/s, docker-py {rounds[-1][1]:.2f}/s")
    mine, reference = median([a for a, _ in rounds]), median([b for _, b in rounds])
    report(
        "throughput", figure=mine, reference=reference, ratio=mine / reference, unit="jobs a second",
        detail={"jobs": JOBS, "rounds": [[round(a, 2), round(b, 2)] for a, b in rounds]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
