"""Addresses of the form and the lists, and under each job its own."""

from django.urls import include, path

from jobs import host_views, queue_views, timeline_views, views, whatif_views

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("jobs/", views.job_list, name="job_list"),
    path("jobs/new/", views.new_job, name="job_new"),
    path("jobs/preview/", views.preview_job, name="job_preview"),
    path("jobs/<int:pk>/", include("jobs.job_urls")),
    path("queue/", queue_views.queue, name="queue"),
    path("fairshare/", queue_views.fair_share, name="fair_share"),
    path("timeline/", timeline_views.page, name="timeline"),
    path("timeline/data.json", timeline_views.data, name="timeline_data"),
    path("whatif/", whatif_views.what_if, name="what_if"),
    path("whatif/<int:pk>/", whatif_views.result, name="what_if_result"),
    path("estimates/", whatif_views.estimates_page, name="estimates"),
    path("history/", views.history, name="history"),
    path("hosts/join/", host_views.join, name="host_join"),
]
