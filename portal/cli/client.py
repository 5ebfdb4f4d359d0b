"""Talking to the server: every way this can go wrong becomes one sentence and a next step."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx

from portal.cli.config import Config
from portal.cli.failure import Answers, Failure
from portal.cli.text import ACCEPT_LANGUAGE, _

Json = Any
LOG_CHUNK = 1 << 20
RETRY_DELAYS = (0.5, 1.0, 2.0)


class Client:
    """One server. Methods return parsed JSON or bytes, or raise Failure."""

    def __init__(self, config: Config) -> None:
        self.config = config
        if not (config.token.isascii() and config.token.isprintable()):
            raise NotLoggedIn(_("The token is none of Dockyard's."), _("Run: dockyard login %s") % config.url)
        headers = {"Accept-Language": ACCEPT_LANGUAGE, "User-Agent": "dockyard-cli"}
        if config.token:
            headers["Authorization"] = f"Bearer {config.token}"
        self._http = _http(config, headers)

    def get(self, path: str, **params: Any) -> Json:
        return self._json(self.send("GET", path, params=_given(params)))

    def post(self, path: str, body: Json = None) -> Json:
        said = {"content": _encoded({} if body is None else body), "headers": {"Content-Type": "application/json"}}
        return self._json(self.send("POST", path, **said))

    def post_again(self, path: str, body: Json) -> Json:
        """Post what may safely arrive twice: a lost connection is tried anew a few times."""
        for delay in RETRY_DELAYS:
            try:
                return self.post(path, body)
            except Unreachable:
                time.sleep(delay)
        return self.post(path, body)

    def delete(self, path: str) -> None:
        self.send("DELETE", path)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request whose answer is good, or Failure."""
        request = self._request(method, path, **options)
        with _explained(self.config):
            response = self._http.send(request)
        return self._good(response)

    @contextmanager
    def stream(self, path: str, **params: Any) -> Iterator[httpx.Response]:
        """A long download, read piece by piece."""
        request = self._request("GET", path, params=_given(params))
        with _explained(self.config), closing(self._http.send(request, stream=True)) as response:
            if response.status_code >= 300:
                response.read()
            self._good(response)
            yield response

    def _request(self, method: str, path: str, **options: Any) -> httpx.Request:
        try:
            return self._http.build_request(method, path, **options)
        except UnicodeEncodeError as error:
            raise no_text(error) from error
        except httpx.InvalidURL as error:  # far too long
            raise _unreachable(self.config, error) from error

    def _good(self, response: httpx.Response) -> httpx.Response:
        if response.status_code >= 300:
            raise _refusal(response, self.config)
        Answers.came = True
        return response

    def _json(self, response: httpx.Response) -> Json:
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise _no_dockyard(self.config, response) from error


class Unreachable(Failure):
    """No answer came: the request may or may not have arrived."""


class Missing(Failure):
    """The server says that there is no such thing, or not for this user."""


class NotLoggedIn(Failure):
    """No token, or one that the server does not accept."""


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _http(config: Config, headers: dict[str, str]) -> httpx.Client:
    """Raises Failure where the environment names a proxy or certificates that are of no use."""
    try:
        return httpx.Client(
            base_url=config.url, headers=headers, timeout=httpx.Timeout(30, connect=10), trust_env=not config.is_local,
            verify=config.url.startswith("https:"),  # reading all certificates takes longer than the request
        )  # fmt: skip
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        raise _unreachable(config, error) from error


def _encoded(body: Json) -> bytes:
    """JSON in UTF-8. Raises Failure for what no JSON can say."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise no_text(error) from error
    except ValueError as error:
        raise Failure(_("A number must be finite.")) from error


def no_text(error: UnicodeEncodeError) -> Failure:
    """Of an argument's byte that is no UTF-8."""
    near = error.object[max(error.start - 20, 0) : error.start + 20]
    return Failure(_("“%s” is no text in UTF-8.") % ascii(near)[1:-1])


@contextmanager
def _explained(config: Config) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable(_("%s does not answer in time.") % config.url, _("Try again in a moment.")) from error
    except httpx.RequestError as error:
        raise _unreachable(config, error) from error


def _unreachable(config: Config, error: Exception) -> Unreachable:
    return Unreachable(
        _("Cannot reach Dockyard at %(url)s (%(error)s).") % {"url": config.url, "error": _short(error)},
        _("Check the address and that the server runs; another address: dockyard login URL"),
    )


def _short(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return _("connection refused") if "refused" in text.lower() else text.rstrip(".")


def _no_dockyard(config: Config, response: httpx.Response) -> Failure:
    return Failure(
        _("There is no Dockyard at %(url)s (it answered %(status)s).")
        % {"url": config.url, "status": response.status_code},
        _("Check the address, then run: dockyard login URL"),
    )


def _refusal(response: httpx.Response, config: Config) -> Failure:
    """What an answer other than good means for the person."""
    if response.is_redirect:
        target = response.headers.get("location", "").split("/api/")[0]
        if not target.startswith(("http://", "https://")):  # to a page of its own, where no API is
            return _no_dockyard(config, response)
        return Failure(_("%(url)s sends us on to %(target)s.") % {"url": config.url, "target": target},
                       _("Log in there: dockyard login %s") % target)  # fmt: skip
    sentence = _sentences(response)
    if response.status_code == 401:
        return NotLoggedIn(sentence or _("Not logged in."), _("Run: dockyard login %s") % config.url)
    if response.status_code >= 500:
        return Failure(_("The server failed (status %s).") % response.status_code,
                       _("Try again in a moment; its own log says why."))  # fmt: skip
    if not sentence:
        return _no_dockyard(config, response)
    return (Missing if response.status_code == 404 else Failure)(sentence)


def _sentences(response: httpx.Response) -> str:
    """The refusals in the server's own words, each with its field."""
    try:
        errors = response.json()["errors"]
        return "\n  ".join(f"{e['field']}: {e['message']}" if e["field"] else e["message"] for e in errors)
    except (ValueError, KeyError, TypeError):
        return ""
