"""What nobody means to send: values for fuzzers, and a note of which parameters a view looks at."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from unittest import mock
from urllib.parse import quote_from_bytes

from django.http import QueryDict
from hypothesis import strategies as st

DEEP = 3000
# Each broke some portal once: numbers beyond columns, digits that int() or a database takes otherwise, dates beyond
# calendars, half characters, NUL, orders to terminals, markup, templates, paths, cells of spreadsheets.
WORDS = (
    "", "0", "1", "-1", "2", "00", "1.5", "1e400", "-1e400", "nan", "inf", "-Infinity", "0x10", "1_000", "٣", "²",
    "Ⅷ", "9" * 10, "9" * 19, "-"+"9" * 19, "9" * 400, str(2**31), str(2**63), str(-(2**63)-1), "1e10", "1e18", "true",
    "null", "none", "on", "all", "mine", "up", "now", "high", "urgent", "30d", "9" * 30+"d", "1h", "-1h", "1:00:00",
    "2026-11-30", "0001-01-01", "9999-12-31", "99999-01-01", "2026-02-30", "2026-11-30T12:00",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "[]", "{}", "[1]", '["a", 1]',
    "[9999999999999999999999]", '["0001-01-01T00:00:00+14:00",1]', "[" * DEEP, '{"a":' * DEEP, "\0", "a\0b", "\ud800",
    "a\udfffb", "\u202eevil", "\ufeff", "😀" * 70, "ÿ" * 300, "x" * 5000, "<script>alert(1)</script>", "{{ 7*7 }}",
    "{% load x %}", "%s%n%(x)s", "%", "%00", "';--", '"', "\\", "\r\nX-Odd: 1", "\n", "../../etc/passwd", "/",
    "//evil.example", "javascript:alert(1)", "https://evil.example/", "=1+1", "#1", "(?", "(a+)+$", "[[:alpha:]",
    "a{1,99999}", "\\", "key=value", "a=b=c", "@sha256:"+"0" * 64, "en", "zh-hans", "xx-yy-zz", "GPU-alpha-0000",
    "running", "COMPLETED", "new", "csv", "json", "gz", "html", "head", "files",
)  # fmt: skip


def as_bytes(text: str) -> bytes:
    """Half characters too, as what is no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def words(*known: str) -> st.SearchStrategy[str]:
    """Odd and plausible texts; `known` are such that lead somewhere here."""
    return st.one_of(
        st.sampled_from((*known, *WORDS)), st.sampled_from((*known, *WORDS)), st.text(max_size=30),
        st.integers().map(str), st.datetimes().map(str), st.floats().map(str),
    )  # fmt: skip


def urlencoded(pairs: list[tuple[str, str]]) -> str:
    return "&".join(f"{quote_from_bytes(as_bytes(k))}={quote_from_bytes(as_bytes(v))}" for k, v in pairs)


def pairs(names: set[str], *known: str) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Parameters as a query or a form has them: mostly by names that are looked at, also twice."""
    name = st.sampled_from(sorted(names)) if names else st.just("odd")
    return st.lists(st.tuples(st.one_of(name, name, name, words()), words(*known)), max_size=6)


def jsons(*known: str) -> st.SearchStrategy[Any]:
    """Anything that JSON can say, and half characters, which only its escapes can."""
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words(*known))
    keys = words(*known)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
    )


def dumped(value: Any) -> str:
    """In ASCII: half characters as escapes."""
    return json.dumps(value)


@contextmanager
def noted() -> Iterator[set[str]]:
    """The names of all parameters that are looked at meanwhile, in whatever query or form."""
    names: set[str] = set()
    found, listed = QueryDict.__getitem__, QueryDict.getlist

    def getitem(self: Any, key: str) -> Any:
        names.add(key)
        return found(self, key)

    def getlist(self: Any, key: str, *default: Any) -> Any:
        names.add(key)
        return listed(self, key, *default)

    def contains(self: Any, key: object) -> bool:
        names.add(str(key))
        return dict.__contains__(self, key)

    with mock.patch.multiple(QueryDict, create=True, __getitem__=getitem, getlist=getlist, __contains__=contains):
        yield names


class Fields(HTMLParser):
    """`found`: names and values of the forms in a page, as a browser would send them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "option" and self._select and ("selected" in told or self._select not in self.found):
            self.found[self._select] = told.get("value") or ""
        name = told.get("name") or ""
        if tag == "select":
            self._select = name
        ticked = told.get("type") not in ("checkbox", "radio") or "checked" in told
        if tag in ("input", "textarea") and name and ticked:
            self.found[name] = told.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
