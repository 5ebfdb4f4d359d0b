"""Jobs by a part of their name or image, found by an index of trigrams: `pg_trgm` in PostgreSQL, FTS5 in SQLite.

Both know any three characters in a row. Where the database can't have such an index, and for shorter texts, only the
newest jobs are looked through, and pages say so.
"""

import logging
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, router, transaction
from django.db.models import Max, Q, QuerySet, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Concat

from jobs.models import Job
from jobs.plain import is_number
from portal.models import User

log = logging.getLogger(__name__)

SHORTEST = 3  # characters that an index of trigrams can find
NEWEST = 50_000  # jobs that are looked through where there is none
INDEX = "job_trigrams"  # in PostgreSQL
WORDS = "jobs_job_words"  # in SQLite: a table of FTS5's, over the jobs' own text
MOST_OWNERS = 200

_known: dict[str, bool] = {}  # by database: whether it has the index


class Wanted(NamedTuple):
    """A text that is looked for. `known`: the jobs of whom it names, or with that number."""

    q: str
    known: Q
    newest: int | None  # only the jobs above this number are looked through; None: all

    def among(self, jobs: QuerySet[Job], *, few: bool = False) -> QuerySet[Job]:
        """Those of the jobs with the text in name or image, and the known ones.

        `few`: of so few jobs that to look at each costs less than to ask the index.
        """
        if self.newest is not None:
            return jobs.filter(self.known | Q(_anywhere("name", "image", self.q), pk__gt=self.newest))
        if few and connections[jobs.db].vendor == "postgresql":
            jobs = jobs.alias(_name=Concat("name", Value("")), _image=Concat("image", Value("")))  # in no index
            return jobs.filter(self.known | _anywhere("_name", "_image", self.q))
        return jobs.filter(self.known | _indexed(jobs.db, self.q))


def wanted(q: str) -> Wanted:
    """What to look for where `q` is asked for: in name, image or owner's name, or as a number."""
    number = q.removeprefix("#")
    known = Q(pk=int(number)) if is_number(number) else Q()
    owners = User.objects.filter(username__icontains=q).values_list("pk", flat=True)[:MOST_OWNERS]
    if found := list(owners):
        known |= Q(owner__in=found)
    return Wanted(q, known, None if is_whole(Job.objects.db, q) else _newest() - NEWEST)


def _anywhere(name: str, image: str, q: str) -> Q:
    return Q(**{f"{name}__icontains": q}) | Q(**{f"{image}__icontains": q})


def is_whole(using: str, q: str) -> bool:
    """Whether all jobs are looked through for this text; else only the NEWEST."""
    return (len(q) >= SHORTEST and is_indexed(using)) or _newest() <= NEWEST


_MATCH = "SELECT rowid FROM jobs_job_words WHERE jobs_job_words MATCH %s"


def _newest() -> int:
    return Job.objects.aggregate(pk=Max("pk"))["pk"] or 0


def _indexed(using: str, q: str) -> Q:
    if connections[using].vendor == "sqlite" and len(q) >= SHORTEST and is_indexed(using):
        phrase = '"' + q.replace('"', '""') + '"'
        return Q(pk__in=RawSQL(_MATCH, [phrase]))  # noqa: S611
    return _anywhere("name", "image", q)


def is_indexed(using: str) -> bool:
    """Whether the database has the index; asked once a process."""
    if using not in _known:
        _known[using] = _has(using, INDEX if connections[using].vendor == "postgresql" else WORDS)
    return _known[using]


def _has(using: str, name: str) -> bool:
    table, column = {"postgresql": ("pg_class", "relname"), "sqlite": ("sqlite_master", "name")}[
        connections[using].vendor
    ]
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {table} WHERE {column} = %s", [name])  # noqa: S608
        return cursor.fetchone() is not None


def prepare(using: str, **_signal: Any) -> None:
    """Make the index where it is missing. After every migration: SQLite loses triggers with a table made anew."""
    if not router.allow_migrate_model(using, Job):
        return
    make = {"postgresql": _prepare_postgres, "sqlite": _prepare_sqlite}[connections[using].vendor]
    try:
        with transaction.atomic(using=using):
            make(using)
    except DatabaseError as error:
        log.warning("no index for searching jobs by a part of a name; only the newest are looked through: %s", error)
    _known.pop(using, None)


# What changed lately stands in a list, which each search reads whole: at most so much of it, not PostgreSQL's 4 MB.
_PENDING = "gin_pending_list_limit = 256"  # kB


def _prepare_postgres(using: str) -> None:
    with connections[using].cursor() as cursor:
        if not _has(using, INDEX):
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            columns = "UPPER(name) gin_trgm_ops, UPPER(image) gin_trgm_ops"
            cursor.execute(f"CREATE INDEX {INDEX} ON jobs_job USING gin ({columns}) WITH ({_PENDING})")
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [INDEX])
        if not cursor.fetchone()[0]:  # of an older version
            cursor.execute(f"ALTER INDEX {INDEX} SET ({_PENDING})")


_OLD = "INSERT INTO jobs_job_words(jobs_job_words, rowid, name, image) VALUES ('delete', old.id, old.name, old.image);"
_NEW = "INSERT INTO jobs_job_words(rowid, name, image) VALUES (new.id, new.name, new.image);"
_TRIGGERS = {
    "job_words_added": f"AFTER INSERT ON jobs_job BEGIN {_NEW} END",
    "job_words_changed": f"AFTER UPDATE OF name, image ON jobs_job BEGIN {_OLD} {_NEW} END",
    "job_words_gone": f"AFTER DELETE ON jobs_job BEGIN {_OLD} END",
}
_TABLE = "fts5(name, image, content='jobs_job', content_rowid='id', tokenize='trigram')"


def _prepare_sqlite(using: str) -> None:
    if all(_has(using, name) for name in (WORDS, *_TRIGGERS)):
        return
    with connections[using].cursor() as cursor:
        cursor.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {WORDS} USING {_TABLE}")
        for name, does in _TRIGGERS.items():
            cursor.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {does}")
        cursor.execute("INSERT INTO jobs_job_words(jobs_job_words) VALUES ('rebuild')")
