"""`manage.py whatif N`: work out what-if question N. The scheduler starts it; it gives way to everything else."""

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs import whatif


class Command(BaseCommand):
    help = "Work out a what-if question that the scheduler has taken up."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        os.nice(15)
        whatif.work_out(options["number"])
