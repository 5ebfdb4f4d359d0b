"""From sending a POST until RUNNING is committed, on an idle system, against create + start by plain docker-py."""

import contextlib
import time
import uuid

from bench._report import report, say
from bench._rig import Client, Product, create_arguments, median, percentile, product

ROUNDS, JOBS = 3, 50
SCRIPT = "sleep 2"


def ours(product: Product, count: int) -> list[float]:
    """Milliseconds for each of `count` jobs, one after another."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        job = product.post(SCRIPT, gpus=1)
        found.append((product.when(job, "RUNNING") - begun) * 1000)
        product.when_ended([job])
        product.settle()
    return found


def theirs(product: Product, count: int) -> list[float]:
    """Milliseconds of create and start, in the same way."""
    found = []
    with contextlib.closing(Client(product.docker_url)) as client:
        for _ in range(count):
            begun = time.perf_counter()
            made = client.create_container_from_config(create_arguments(SCRIPT), f"reference-{uuid.uuid4().hex}")
            client.start(made["Id"])
            found.append((time.perf_counter() - begun) * 1000)
            client.wait(made["Id"])
            client.remove_container(made["Id"])
            time.sleep(1)
    return found


def main() -> None:
    rounds = []
    with product() as running:
        for number in range(ROUNDS):
            count = JOBS // ROUNDS + (number < JOBS % ROUNDS)
            mine, reference = ours(running, count), theirs(running, count)
            rounds.append((mine, reference))
            say(f"round {number + 1}: ours {median(mine):.0f} ms, docker-py {median(reference):.0f} ms")
    mine = [value for round_ in rounds for value in round_[0]]
    reference = [value for round_ in rounds for value in round_[1]]
    report(
        "launch", figure=median(mine) - median(reference), reference=median(reference),
        ratio=median(mine) / median(reference), unit="ms added to create + start, p50",
        detail={
            "jobs": len(mine), "ours_p50_ms": round(median(mine), 1), "ours_p95_ms": round(percentile(mine, 95), 1),
            "docker_py_p50_ms": round(median(reference), 1), "docker_py_p95_ms": round(percentile(reference, 95), 1),
            "rounds": [[round(median(a)), round(median(b))] for a, b in rounds],
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
