"""Starts the demo, ``flights/demo.py``, under spark-submit or as a plain script."""

import sys

from flights.demo import main

sys.exit(main())
