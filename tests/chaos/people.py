"""Who submits, cancels and moves jobs, over HTTP, again and again until the portal has heard it."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.chaos.evidence import Order
from tests.chaos.site import Site

PATIENCE = 180.0  # seconds for one request, with the web process killed as often as it is
AGAIN = 0.3
AT_ONCE = 16


class People:
    """Carries out orders at their times. `jobs`: order number → job id; `refused`: what the portal would not take."""

    def __init__(self, site: Site, orders: list[Order]) -> None:
        self.site, self.orders = site, orders
        self.jobs: dict[int, int] = {}
        self.refused: list[str] = []
        self.longest = 0.0  # seconds that a request was repeated until it was heard
        self._begun = 0.0
        self._thread = threading.Thread(target=self._work, name="people", daemon=True)

    def start(self) -> None:
        self._begun = time.monotonic()
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _work(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for order in self.orders:
                self._rest_until(order.at)
                pool.submit(self._try, order)

    def _rest_until(self, at: float) -> None:
        time.sleep(max(0.0, self._begun + at - time.monotonic()))

    def _try(self, order: Order) -> None:
        try:
            self._carry_out(order)
        except Exception as error:  # noqa: BLE001
            self.refused.append(f"{order.token}: {error!r}")

    def _carry_out(self, order: Order) -> None:
        answer = self.ask(order.owner, "POST", "/api/jobs", json=dict(order.body))
        if answer.status_code != 201:
            self.refused.append(f"{order.token}: {answer.status_code} {answer.text[:300]}")
            return
        self.jobs[order.number] = job = answer.json()["id"]
        begun = time.monotonic()
        for after, verb in sorted(order.moves):
            time.sleep(max(0.0, begun + after - time.monotonic()))
            answer = self.ask(order.owner, "POST", f"/api/jobs/{job}/{verb}", json={})
            if answer.status_code >= 400 and verb != "move":  # there may be no place to move to
                self.refused.append(f"{order.token}, {verb}: {answer.status_code} {answer.text[:300]}")

    def ask(self, owner: str, method: str, path: str, **more: Any) -> httpx.Response:
        """The first answer that is one. Raises TimeoutError."""
        begun = time.monotonic()
        headers = {"Authorization": f"Bearer {self.site.tokens[owner]}"}
        while time.monotonic() < begun + PATIENCE:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.request(method, f"{self.site.portal.url}{path}", headers=headers, timeout=30, **more)
                if answer.status_code < 500:
                    self.longest = max(self.longest, time.monotonic() - begun)
                    return answer
            time.sleep(AGAIN)
        raise TimeoutError(f"{method} {path}: no answer in {PATIENCE} s")
