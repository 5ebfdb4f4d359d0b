"""What the API answers about jobs."""

from typing import Any

from ninja import Field, Schema

EXPECTED = "When it should start: earliest, latest, text, and how far to trust it; null when nobody can say"


class RunOut(Schema):
    """`verified`: whether it was read back from the container that it got just its GPUs; null: not looked yet."""

    id: int
    number: int
    node: str
    state: str
    started_at: str | None
    ended_at: str | None
    verified: bool | None


class EndOut(Schema):
    label: str
    sentence: str
    suggestion: str
    changes: dict[str, str] = Field(description="Fields of the form that the suggestion would change")
    details: str = Field(description="The engine's own words")
    oom_killed: bool | None


class JobRow(Schema):
    """A job as lists show it. Times in ISO 8601; what a submission asks is also there by its names and units."""

    id: int
    name: str
    owner: str
    team: str
    image: str
    gpus: int
    gpu_model: str
    gpu_percent: float = Field(description="The share of its one GPU")
    gpu_profile: str = Field(description="The MIG profile asked for; empty: whole GPUs")
    least_gpus: int | None = Field(description="Elastic: it starts with as few; null: it is not")
    node_labels: list[str]
    stop_signal: str
    interactive: bool
    preemptible: bool
    movable: bool
    offline: bool
    cpus: float
    memory_gib: float
    shm_gib: float
    gpu_memory_gib: float = Field(description="Of each GPU, at least; 0: any")
    grace_seconds: int
    millicpus: int
    memory_mib: int
    shm_mib: int
    limit_seconds: int | None
    priority: int
    priority_label: str
    url: str
    state: str
    state_label: str
    icon: str
    tone: str
    is_waiting: bool
    is_live: bool
    is_ended: bool
    headline: str = Field(description="The one sentence: why it waits, where it runs, how it ended")
    reasons: list[str]
    cannot_start: bool = Field(description="It waits for what can't come: change it")
    suggestion: str = Field(description="What would let a job start that cannot start as it is; else empty")
    changes: dict[str, str] = Field(description="Fields of the form that the suggestion would change")
    held_by_user: bool
    held_by_admin: bool
    wish: str
    requeues: int
    pinned: bool
    created_at: str
    queued_at: str
    start_after: str | None
    started_at: str | None
    ended_at: str | None
    deadline: str | None
    stopping_at: str | None
    end_reason: str
    exit_code: int | None
    end: EndOut | None
    run: RunOut | None = Field(description="The last attempt")
    output: dict[str, Any] | None = Field(
        description="How far its program says that it is: percent, text, ends_at (or null); null when it tells nothing"
    )
    idle: str = Field(description="That its GPUs do nothing, and since when; empty where they work, or nobody knows")
    put_back: str = Field(description="Why it waits although it ran already; else empty")
    loan: str = Field(description="That its GPUs are borrowed, and when they can be taken back; else empty")


class ListedJob(JobRow):
    position: int | None = Field(description="Place in the queue, from 1")
    expected: dict[str, Any] | None = Field(description=EXPECTED)


class JobOut(JobRow):
    """The same answer as the job's page and its socket have."""

    ways: list[dict[str, Any]] = Field(description="What may change: text, changes to post to amend, a question")
    ways_of: str = Field(description="Who may change it, where something would help but the reader may not; else empty")
    actions: dict[str, bool] = Field(description="What the reader may do to it now")
    gpus_granted: list[dict[str, Any]]
    warnings: list[str]
    version: str = Field(description="Changes whenever the job does")
    server_time: float
    log: dict[str, Any] | None
    progress: dict[str, Any] | None
    place: dict[str, Any] | None
    expected: dict[str, Any] | None = Field(description=EXPECTED)


class JobList(Schema):
    jobs: list[ListedJob]
    next: int | None = Field(description="Pass it as `before` to read on; null at the end")


class Changed(Schema):
    changed: bool = Field(description="False when there was nothing left to do")
    job: JobOut


class ExtensionOut(Schema):
    granted: bool = Field(description="False: others would start later, and the time limit stays as it was")
    message: str
    deadline: str = Field(description="The new one; where not granted, what it would have been")
    delayed: list[dict[str, Any]] = Field(description="Jobs that start later: id, and seconds (null: nobody can say)")
    job: JobOut


class Reason(Schema):
    code: str
    message: str
    params: dict[str, Any] = Field(description="The numbers and names of the message")


class Why(Schema):
    id: int
    state: str
    headline: str
    cannot_start: bool = Field(description="No waiting helps: hosts or limits as they are can never give it that much")
    reasons: list[Reason] = Field(description="All reasons why it waits, the final ones first; empty unless it waits")
    position: int | None = Field(description="Place in the queue, from 1")
    queue_length: int
    ahead: dict[str, Any] | None = Field(
        description="Jobs before it that wait for the same: count, the first by id (jobs), and a sentence (text)"
    )
    expected: dict[str, Any] | None = Field(description=EXPECTED)
    end_reason: str
    exit_code: int | None
    suggestion: str
    ways: list[dict[str, Any]] = Field(description="What may change: text, changes to post to amend, a question")
    ways_of: str = Field(description="Who may change it, where something would help but the reader may not; else empty")
    details: str = Field(description="The engine's own words")


class Event(Schema):
    at: str
    kind: str
    old_state: str
    new_state: str
    run: int | None
    actor: str | None
    message: str


class PreviewOut(Schema):
    verdict: str = Field(description="now, waits or never")
    node: str
    position: int | None = Field(description="Place in the queue, from 1; null where it would not be in line")
    earliest: str | None = Field(description="When it should start, as a range; null when nobody can say")
    latest: str | None
    expected: str = Field(description="The range in words; empty when nobody can say")
    trust: str = Field(description="How often such ranges were right, in words; empty while too few are known")
    reasons: list[Reason]
    loan: str = Field(description="That its GPUs would be borrowed, and when they could be taken back; else empty")


class QueueEntry(Schema):
    """A waiting job. Name and image are null for those who may not see the job itself."""

    id: int
    place: int | None
    state: str
    owner: str
    team: str
    mine: bool
    name: str | None
    image: str | None
    reasons: list[Reason]
    put_back: str | None = Field(description="Why it waits although it ran already; else empty")
    gpus: int
    gpu_model: str
    cpus: float
    memory_gib: float
    millicpus: int
    memory_mib: int
    limit_seconds: int | None
    priority: str
    queued_at: str
    start_after: str | None
    pinned: bool
    earliest: str | None = Field(description="Expected start; null: nobody can say")
    latest: str | None
    expected: str = Field(description="The same in words; empty when nobody can say")


class QueueOut(Schema):
    queued: list[QueueEntry] = Field(description="First to start first")
    held: list[QueueEntry]
    later: list[QueueEntry] = Field(description="Not to start before some time: ahead of nobody")
    total: int = Field(description="How many of those queued there are in all")
    next: int | None = Field(description="Pass it as `after` to read on; null at the end")
