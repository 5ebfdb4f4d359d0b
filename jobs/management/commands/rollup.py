"""`manage.py rollup`: sum up the GPU time of the days that are over. The scheduler does so by itself."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from jobs import gputime


class Command(BaseCommand):
    help = "Sum up the GPU time of each day that is over, from allocations. The scheduler does this all the time."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rebuild", action="store_true", help="throw all sums away first, and make them again")

    def handle(self, *args: Any, **options: Any) -> None:
        write = gputime.rebuild if options["rebuild"] else gputime.roll_up
        self.stdout.write(f"{write(timezone.now())} sums written")
