"""Form fields for what people write about jobs: quantities with units, command lines, environment rows."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobs import units, wording
from jobs.request import Problem

NO_LIMIT_WORDS = frozenset({"none", "unlimited", "no limit"})
BLANK_ROWS = 3
MOST_ROWS = 500
_ROW = re.compile(r"env-(\d{1,4})-name")


class QuantityField(forms.CharField):
    """A text read by one of `jobs.units`, as the command line reads it. Cleans to a whole number or None.

    `show` writes a number that is there already, so that `read` reads the same again.
    """

    def __init__(self, read: Callable[[str], int], *, show: Callable[[int], str] = str, **options: Any) -> None:
        super().__init__(max_length=40, **options)
        self.read = read
        self.show = show

    def prepare_value(self, value: Any) -> Any:
        return self.show(value) if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), data)

    def clean(self, value: Any) -> int | None:
        text: str = super().clean(value)
        if not text:
            return None
        try:
            return self.read(text)
        except units.BadQuantity as error:
            problem = Problem(field="", code=error.code, params={"text": error.text})
            raise forms.ValidationError(wording.problem(problem), code=error.code) from error


class LimitField(QuantityField):
    """A time limit in seconds; None when the text says that there is to be none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(units.parse_limit, **options)

    def clean(self, value: Any) -> int | None:
        text = str(value or "").strip().lower()
        return None if text in NO_LIMIT_WORDS or text == _("none") else super().clean(value)


class WordsField(forms.CharField):
    """A command line, split as a shell splits it. Cleans to a tuple of words."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, max_length=20_000, **options)

    def clean(self, value: Any) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(super().clean(value)))
        except ValueError as error:
            raise forms.ValidationError(wording.problem(Problem(field="", code="BAD_QUOTES"))) from error


class ScriptField(forms.CharField):
    """Text with the line ends that a shell wants: browsers send CR LF."""

    def to_python(self, value: Any) -> str:
        return unix_lines(super().to_python(value) or "")


def unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One environment variable as typed. `kept` is the job whose secret of this name stands in for a value."""

    name: str = ""
    value: str = ""
    secret: bool = False
    kept: int | None = None
    again: bool = False  # shown only: the value has to be typed again

    @property
    def is_blank(self) -> bool:
        return not (self.name or self.value)


class EnvironmentWidget(forms.Widget):
    """Rows `env-<n>-name|value|secret|kept`. Never renders the value of a secret row."""

    template_name = "jobs/_environment.html"

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> list[Row]:
        numbers = sorted({int(match[1]) for key in data if (match := _ROW.fullmatch(key))})
        rows = (_posted(data, f"env-{number}-") for number in numbers[:MOST_ROWS])
        return [row for row in rows if not row.is_blank]

    def value_omitted_from_data(self, data: Mapping[str, Any], files: Any, name: str) -> bool:
        return not any(_ROW.fullmatch(key) for key in data)

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        shown = [_masked(row) for row in value or ()]
        context = super().get_context(name, None, attrs)
        context["widget"]["rows"] = list(enumerate([*shown, *[Row()] * BLANK_ROWS]))
        context["widget"]["blank"] = Row()
        return context

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """By the project's template engine: that of forms does not look into `templates/`."""
        return render_to_string(self.template_name, self.get_context(name, value, attrs))


def _posted(data: Mapping[str, Any], prefix: str) -> Row:
    kept = str(data.get(prefix + "kept", ""))
    return Row(
        name=str(data.get(prefix + "name", "")).strip(), value=unix_lines(str(data.get(prefix + "value", ""))),
        secret=bool(data.get(prefix + "secret")), kept=int(kept) if kept.isdecimal() and len(kept) < 12 else None,
    )  # fmt: skip


def _masked(row: Row) -> Row:
    return replace(row, value="", again=row.again or not row.kept) if row.secret else row


class EnvironmentField(forms.Field):
    """The environment as a list of Row."""

    widget = EnvironmentWidget

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, **options)

    def to_python(self, value: Any) -> list[Row]:
        return list(value or ())

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial or data)
