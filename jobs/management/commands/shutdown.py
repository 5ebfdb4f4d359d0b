"""`manage.py shutdown`: for whoever removes all containers next, as the demo does when it stops."""

from typing import Any

from django.core.management.base import BaseCommand

from jobs.shutdown import shut_down


class Command(BaseCommand):
    help = "Say of all jobs that run that they are stopped, since their containers are about to be removed."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(str(shut_down()))
