"""What the server of child processes imports before it forks one: all that a child comes to import.

Otherwise each child takes half a second of processor time for it, most of that for pandas, which
Arrow imports at its first array. Nothing of it starts a thread but what Arrow and numpy start at
their import, and nothing reads the environment. No collection of a child's garbage looks at it all.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil

_ROOMS = ("engine", "event_time", "key_value", "reader_groups", "retention", "scaling", "txn")

for _room in _ROOMS:
    _package = importlib.import_module(f"pravega_spark.{_room}")
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)
for _name in ("manager", "event_reader", "event_writer", "shared_state", "byte_streams.writer"):
    importlib.import_module(f"pravega_spark.{_name}")
for _name in ("pandas", "pyarrow.compute", "pyarrow.parquet", "pytest"):
    importlib.import_module(_name)
gc.freeze()
