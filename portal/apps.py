from typing import Any

from auditlog.apps import AuditlogConfig
from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _


class PortalConfig(AppConfig):
    default = True
    name = "portal"
    verbose_name = _("People")

    def ready(self) -> None:
        from portal import checks  # noqa: F401 - registers them

        connection_created.connect(_read_moments)
        connection_created.connect(_tell_patience)


def _read_moments(*, connection: Any, **_signal: Any) -> None:
    if connection.vendor == "postgresql":
        from portal import moments

        moments.register(connection)


def _tell_patience(*, connection: Any, **_signal: Any) -> None:
    if connection.vendor == "postgresql":
        from portal import databases

        told = databases.told_to_server(connection.settings_dict)
        if told:
            connection.connection.execute(told)


class TaskQueuesConfig(AppConfig):
    """django_rq under a name that says what its pages show."""

    name = "django_rq"
    default_auto_field = "django.db.models.AutoField"
    verbose_name = _("Task queues")


class AuditConfig(AuditlogConfig):  # type: ignore[misc]  # it has no annotations
    """auditlog with its name in the reader's language, which its own catalogue lacks."""

    verbose_name = _("Audit log")
