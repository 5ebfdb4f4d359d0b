"""Addresses under /jobs/<id>/."""

from django.urls import path

from jobs import download_views, job_views, log_views, output_views, queue_views

urlpatterns = [
    path("", job_views.page, name="job"),
    path("status.json", job_views.status_json, name="job_status"),
    path("charts.json", job_views.charts_json, name="job_charts"),
    path("metrics.json", output_views.metrics_json, name="job_metrics"),
    path("log", job_views.log, name="job_log"),
    path("log/search", log_views.search, name="job_log_search"),
    path("log/find", log_views.find, name="job_log_find"),
    path("log/notes", log_views.notes, name="job_log_notes"),
    path("log/download", download_views.log, name="job_log_download"),
    path("files/<path:relpath>", job_views.file, name="job_file"),
    path("cancel/", job_views.cancel, name="job_cancel"),
    path("hold/", job_views.hold, name="job_hold"),
    path("release/", job_views.release, name="job_release"),
    path("move/", job_views.move, name="job_move"),
    path("extend/", job_views.extend, name="job_extend"),
    path("amend/", job_views.amend, name="job_amend"),
    path("pin/", queue_views.pin, name="job_pin"),
    path("unpin/", queue_views.unpin, name="job_unpin"),
    path("priority/", queue_views.priority, name="job_priority"),
    path("reorder/", queue_views.move, name="job_reorder"),
    path("resubmit/", job_views.resubmit, name="job_resubmit"),
]
