"""A follower alone in a process: `["verb", argument, …]` a line in, "ok" or an error out."""

import json
import sys

import django

django.setup()

from django.db import close_old_connections  # noqa: E402

from jobs.follow import Follower  # noqa: E402


def main() -> None:
    follower = Follower()
    follower.start()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        close_old_connections()
        try:
            getattr(follower, verb)(*arguments)
            print("ok", flush=True)
        except Exception as error:  # noqa: BLE001  # told to the test
            print(repr(error), flush=True)


if __name__ == "__main__":
    main()
