"""The job ``scaling``, which splits and merges: ``maintenance`` with a kind of its own."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from pravega_spark.jobs import maintenance

PROG: Final = "scaling"
main = partial(maintenance.main, prog=PROG)
parse = partial(maintenance.parse, prog=PROG)

if __name__ == "__main__":
    sys.exit(main())
