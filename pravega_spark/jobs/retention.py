"""The job ``retention``, which truncates and sweeps: ``maintenance`` with kinds of its own."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from pravega_spark.jobs import maintenance

PROG: Final = "retention"
main = partial(maintenance.main, prog=PROG)
parse = partial(maintenance.parse, prog=PROG)

if __name__ == "__main__":
    sys.exit(main())
