from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")

    def ready(self) -> None:
        from gpus.holders import register
        from jobs import audit, people  # noqa: F401 - people listens to signals
        from jobs.holders import holders

        audit.register()
        register(holders)
