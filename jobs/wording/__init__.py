"""Every code as one plain sentence in the reader's language, with its numbers.

All functions read the active language at call time and never raise: a code or a number that this version
does not know (a row of another version) becomes a sentence that names the code.
"""

from jobs.wording import receipts
from jobs.wording.ends import Suggestion, end_label, end_sentence, run_label
from jobs.wording.events import event_sentence, progress, warning
from jobs.wording.expected import ahead, expected_start, trust
from jobs.wording.extension import extension
from jobs.wording.hosts import clock_skew, host_event, host_problem, host_refusal, host_state
from jobs.wording.loans import loan
from jobs.wording.output import output_progress
from jobs.wording.quantities import clock_time, cpus, duration, gpu_hours, gpu_share, gpus, memory, place
from jobs.wording.refusals import problem, refusal, refusals, told
from jobs.wording.states import headline, priority_label, put_back, state_label
from jobs.wording.waits import wait_reason, way_out
from jobs.wording.ways import suggestion, ways, ways_back

__all__ = [
    "Suggestion",
    "ahead",
    "clock_skew",
    "clock_time",
    "cpus",
    "duration",
    "end_label",
    "end_sentence",
    "event_sentence",
    "expected_start",
    "extension",
    "gpu_hours",
    "gpu_share",
    "gpus",
    "headline",
    "host_event",
    "host_problem",
    "host_refusal",
    "host_state",
    "loan",
    "memory",
    "output_progress",
    "place",
    "priority_label",
    "problem",
    "progress",
    "put_back",
    "receipts",
    "refusal",
    "refusals",
    "run_label",
    "state_label",
    "suggestion",
    "told",
    "trust",
    "wait_reason",
    "warning",
    "way_out",
    "ways",
    "ways_back",
]
