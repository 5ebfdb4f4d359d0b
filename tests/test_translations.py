"""The Chinese catalogue is whole, keeps every placeholder, and its compiled form is of the same text."""

import gettext
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client

FOLDER = Path(settings.BASE_DIR) / "locale" / "zh_Hans" / "LC_MESSAGES"
PLACE = re.compile(r"%\((\w+)\)[#0+ -]*[\d.]*[sdf]|%[sd]|\{(\w*)\}|<(/?\w+)")


def entries() -> list[tuple[str, str, list[str], list[str]]]:
    """(context, msgid, the forms to translate, their translations) of every entry but the header."""
    found = []
    for entry in (FOLDER / "django.po").read_text().split("\n\n")[1:]:
        parts = dict(re.findall(r'^(msg\S+) ((?:".*"\n?)+)', entry, re.MULTILINE))
        text = {key: "".join(_unquoted(line) for line in value.splitlines()) for key, value in parts.items()}
        forms = [text["msgid"], *([text["msgid_plural"]] if "msgid_plural" in text else [])]
        found.append((text.get("msgctxt", ""), text["msgid"], forms, [v for k, v in text.items() if "msgstr" in k]))
    return found


def _unquoted(line: str) -> str:
    return line.strip()[1:-1].replace(r"\"", '"').replace(r"\n", "\n").replace("\\\\", "\\")


def test_every_sentence_is_translated() -> None:
    assert [msgid for _context, msgid, _forms, said in entries() if not all(said)] == []
    assert len(entries()) > 500


def test_every_translation_keeps_the_places_for_numbers_and_names() -> None:
    for _context, msgid, forms, said in entries():
        allowed = [sorted(map(str, PLACE.findall(form))) for form in forms]
        assert all(sorted(map(str, PLACE.findall(text))) in allowed for text in said), msgid


def test_the_compiled_catalogue_is_of_the_same_text() -> None:
    """After a change of django.po: msgfmt -o django.mo django.po"""
    with (FOLDER / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for context, msgid, forms, said in entries():
        if len(forms) > 1:
            found = compiled.ngettext(msgid, forms[1], 2)
        else:
            found = compiled.pgettext(context, msgid) if context else compiled.gettext(msgid)
        assert found == said[0], msgid


@pytest.mark.django_db
def test_a_browser_that_asks_for_chinese_gets_it(client: Client) -> None:
    call_command("createcachetable", verbosity=0)
    answer = client.get("/accounts/login/", headers={"Accept-Language": "zh-CN,zh;q=0.9"})
    assert "登录" in answer.text
