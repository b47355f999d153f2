"""What the server of child processes imports for those that serve the page (``preloaded``)."""

from __future__ import annotations

import importlib
import pkgutil

import pravega_spark.serve

for _module in pkgutil.walk_packages(pravega_spark.serve.__path__, "pravega_spark.serve."):
    importlib.import_module(_module.name)
for _name in ("cli.serve_command", "cli.exit_status", "cli.commands", "metrics"):
    importlib.import_module(f"pravega_spark.{_name}")
