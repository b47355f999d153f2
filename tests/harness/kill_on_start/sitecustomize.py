"""Python imports this when it starts with the folder on its path (tests/harness/failpoints.py)."""

import os

from tests.harness import failpoints

failpoints.kill_at(os.environ.get(failpoints.KILL_VARIABLE, ""))
