"""Addresses of the form and the lists, and under each job its own."""

from django.urls import include, path

from jobs import queue_views, views

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("jobs/", views.job_list, name="job_list"),
    path("jobs/new/", views.new_job, name="job_new"),
    path("jobs/preview/", views.preview_job, name="job_preview"),
    path("jobs/<int:pk>/", include("jobs.job_urls")),
    path("queue/", queue_views.queue, name="queue"),
    path("fairshare/", queue_views.fair_share, name="fair_share"),
    path("history/", views.history, name="history"),
]
