from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class GpusConfig(AppConfig):
    name = "gpus"
    verbose_name = _("Hosts and GPUs")

    def ready(self) -> None:
        from gpus import checks  # noqa: F401 - registers them
