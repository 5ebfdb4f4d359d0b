"""The one door to RQ."""
from rq import Worker
from rq.job import Job as ListedJob
