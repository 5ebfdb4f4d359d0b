"""Plain forms in the page's look: log-in, password, tokens."""

from django import forms, template
from django.forms import BoundField
from django.utils.safestring import SafeString

from portal.accounts import mail_works

register = template.Library()
register.simple_tag(mail_works)


@register.filter
def is_checkbox(field: BoundField) -> bool:
    return isinstance(field.field.widget, forms.CheckboxInput)


@register.simple_tag
def styled(field: BoundField) -> SafeString:
    """The field's input with Bootstrap's classes."""
    widget = field.field.widget
    if isinstance(widget, forms.CheckboxInput):
        name = "form-check-input"
    elif isinstance(widget, forms.Select):
        name = "form-select"
    else:
        name = "form-control"
        widget.attrs.pop("placeholder", None)  # the label says it
    return field.as_widget(attrs={"class": f"{name} is-invalid" if field.errors else name})
