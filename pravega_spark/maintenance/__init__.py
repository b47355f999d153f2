"""Maintenance of a root beside the work of its applications: ``maintain="auto"``."""
