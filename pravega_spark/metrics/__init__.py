"""Metrics for Prometheus: of a root, from its logs, and of this process, from its work.

Only ``prometheus_export`` needs the package ``prometheus_client``.
"""
