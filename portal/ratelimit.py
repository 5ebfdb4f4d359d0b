"""How often one person, token or address may ask: buckets of this process, which cost a request nothing to look at."""

import hashlib
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.middleware import address_of

MOST_KEYS = 50_000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
Next = Callable[[HttpRequest], HttpResponse]


class Buckets:
    """Each key may `per_minute` at once, and gets as many back in a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}  # when the key's bucket is full again

    def take(self, key: str, per_minute: int) -> float:
        """0, or how many seconds are to be waited first. A limit of 0 is none."""
        if not per_minute:
            return 0.0
        now = self._clock()
        with self._lock:
            until = max(self._until.get(key, 0.0), now) + 60 / per_minute
            if until > now + 60:
                return until - now - 60
            if len(self._until) >= MOST_KEYS:
                self._until = {known: end for known, end in self._until.items() if end > now}
            self._until[key] = until
        return 0.0


class Proven:
    """Sessions and tokens that were good once. Any other counts as the address that shows it, or whoever makes up a
    new one each time would have as many buckets."""

    def __init__(self) -> None:
        self._digests: set[str] = set()

    def has(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> None:
        if len(self._digests) >= MOST_KEYS:
            self._digests = set()  # each proves itself again
        self._digests.add(digest)


buckets, proven = Buckets(), Proven()


class RateLimits:
    """429 with Retry-After for whoever changes things more than WRITES_PER_MINUTE, or asks the API more than
    API_READS_PER_MINUTE."""

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        reads = request.method in SAFE
        if reads and not request.path.startswith("/api/"):
            return self.get_response(request)
        most = settings.API_READS_PER_MINUTE if reads else settings.WRITES_PER_MINUTE
        shown, address = _shown(request), address_of(request) or ""
        who = shown if proven.has(shown) else address
        wait = buckets.take(f"{'r' if reads else 'w'} {who}", most)
        if wait:
            return _later(request, wait)
        answer = self.get_response(request)
        if shown and who != shown and answer.status_code < 400 and _is_somebody(request):
            proven.add(shown)
        return answer


def _shown(request: HttpRequest) -> str:
    """What stands for the session or token that came along, whether or not it is worth anything."""
    secret = request.headers.get("Authorization") or request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def _is_somebody(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)  # not where the answer came from before accounts are looked at
    return user is not None and bool(user.is_authenticated)


def _later(request: HttpRequest, wait: float) -> HttpResponse:
    answer = HttpResponse(status=429) if request.path.startswith("/api/") else render(request, "429.html", status=429)
    answer.headers["Retry-After"] = str(int(wait) + 1)
    return answer
