"""The demo as a file, for spark-submit; what it does is in ``flights/demo.py``."""

import sys

from flights.demo import main

sys.exit(main())
