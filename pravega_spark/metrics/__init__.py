"""Metrics for Prometheus: of a root, from its logs, and of this process, from its work.

Only ``prometheus`` needs the package ``prometheus_client``.
"""
