"""What the processes of a seed do, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.workloads import mix
from tests.sim.world import World

WORKLOADS: dict[str, Callable[[World], None]] = {"mix": mix.play}
