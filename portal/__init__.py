"""The project: settings, the shell of pages, and what all processes share."""

VERSION = "0.1.0"
