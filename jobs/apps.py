from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")

    def ready(self) -> None:
        from gpus.holders import register
        from jobs import audit, people, search  # noqa: F401 - people listens to signals
        from jobs.holders import holders, named_to

        audit.register()
        register(holders, named_to)
        post_migrate.connect(search.prepare, sender=self)
        post_migrate.connect(_give_hosts_their_rights, sender=self)


def _give_hosts_their_rights(**_signal: Any) -> None:
    """On tables that a migration has made or changed."""
    from jobs import dbroles

    dbroles.refresh()
