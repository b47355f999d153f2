"""A process of a soak: ``python -m tests.soak.process NAME ROOT OPTIONS LIFE`` plays rounds.

It reads a round from each line of its input, plays its programs, each in a thread, and makes a
file when all have ended. An error that no program expects ends it with status 3.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from pravega_spark import StreamManager
from pravega_spark.key_value import fold
from tests.sim.history import SharedHistory
from tests.sim.lives import Body
from tests.soak.lives import Kept, RealLife
from tests.soak.rounds import Round, bodies, working

FAILED = 3
FOLD_AGE_MS = 2_000
"""Changes of a table are folded after so long, and not after ten minutes: a round is over then."""


def play(manager: StreamManager, round: Round, name: str, lives: int) -> None:
    """Play the programs of a round that have not ended in an earlier life."""
    works = working(Path(round.folder), name, lives)
    history = SharedHistory(round.recorded)

    def run(author: str, body: Body) -> None:
        try:
            state = Kept(round.state(author))
            if "over" in state:
                return
            given = (manager, history, author, lives, round.scope, state, str(round.seed))
            life = RealLife(*given, round.kept(author), works)
            body(life)
            state["over"] = True
        except BaseException:
            print(f"round {round.number}, program {author}:", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(FAILED)

    played = bodies(name, round)
    threads = [threading.Thread(target=run, args=pair, name=pair[0]) for pair in played.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history.close()


def main(name: str, root: str, options: str, life: str) -> None:
    """Play each round that is told."""
    faulthandler.register(signal.SIGUSR1)
    vars(fold)["FOLD_AGE_MS"] = FOLD_AGE_MS
    logging.getLogger("pravega_spark").setLevel(logging.CRITICAL)  # outages are what is played
    for line in sys.stdin:
        round = Round(**json.loads(line))
        with StreamManager(root, storage_options=json.loads(options)) as manager:
            play(manager, round, name, int(life))
        round.done(name).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
