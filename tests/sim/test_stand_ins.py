"""What the simulator puts under the package behaves as Python's own threads, queues and clocks."""

from __future__ import annotations

import random
from typing import Any

from tests.sim import scheduler as schedulers
from tests.sim.copies import Copy
from tests.sim.processes import BEGIN_NS, Host, Process
from tests.sim.scheduler import Scheduler


def play(seed: int, main: Any) -> tuple[list[Any], float]:
    """Run ``main`` in a simulated process; return what it noted, and the simulated seconds."""
    scheduler = schedulers.begin(Scheduler(random.Random(seed)))
    scheduler.pace.at_locks = 0.3
    copy, noted = Copy(0), list[Any]()
    process = Process(scheduler, Host("host", scheduler), "p", copy, 50_000_001)

    def run() -> None:
        main(copy.stand_ins, noted)
        process.end()

    process.start_main(run)
    scheduler.run(lambda: not process.alive)
    return noted, scheduler.now / 1e9


def sleepers(modules: Any, noted: list[Any]) -> None:
    threading, time = modules["threading"], modules["time"]
    lock, queue = threading.Lock(), modules["queue"].SimpleQueue()

    def work(seconds: int) -> None:
        time.sleep(seconds)
        with lock:
            noted.append(seconds)
        queue.put(seconds)

    threads = [threading.Thread(target=work, args=(n,), daemon=n % 2 == 0) for n in (3, 1, 2)]
    for thread in threads:
        thread.start()
    noted.append(queue.get(timeout=10))
    for thread in threads:
        thread.join()
    noted.append(any(thread.is_alive() for thread in threads))


def test_threads_wait_in_simulated_time_and_are_joined() -> None:
    for seed in range(20):
        noted, seconds = play(seed, sleepers)
        assert [item for item in noted if item is not False] == [1, 1, 2, 3]
        assert noted[-1] is False
        assert 3 <= seconds < 3.1


def counters(modules: Any, noted: list[Any]) -> None:
    threading, count = modules["threading"], [0]
    lock = threading.RLock()

    def add() -> None:
        for _ in range(20):
            with lock, lock:
                before = count[0]
                with threading.Lock():  # another thread may go on here
                    count[0] = before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noted.append(count[0])


def test_a_lock_excludes_whatever_thread_goes_on() -> None:
    assert {play(seed, counters)[0][0] for seed in range(20)} == {80}


def pools(modules: Any, noted: list[Any]) -> None:
    futures, threading = modules["concurrent.futures"], modules["threading"]
    with futures.ThreadPoolExecutor(2) as pool:
        found = pool.submit(threading.current_thread)
        noted.append(sum(pool.map(lambda n: n * n, range(10))))
        noted.append(isinstance(found, futures.Future))
        noted.append(found.result() is threading.main_thread())
    noted.append(threading.current_thread() is threading.main_thread())
    noted.append(threading.Event().wait(3))
    local = threading.local()
    local.mine = 1
    other = threading.Thread(target=lambda: noted.append(hasattr(local, "mine")))
    other.start()
    other.join()


def test_pools_events_and_values_of_threads_are_those_of_the_process() -> None:
    noted, seconds = play(1, pools)
    assert noted == [285, True, False, True, False, False]
    assert 3 <= seconds < 3.1


def clocks(modules: Any, noted: list[Any]) -> None:
    time, os = modules["time"], modules["os"]
    noted += [time.time_ns(), os.getpid(), os.urandom(8), modules["random"].SystemRandom().random()]


def test_clock_process_id_and_randomness_come_from_the_seed() -> None:
    first, again, other = (play(seed, clocks)[0] for seed in (1, 1, 2))
    assert first == again
    assert first[0] - BEGIN_NS < 1_000_000
    assert first[1] == 50_000_001
    assert first[2:] != other[2:]
