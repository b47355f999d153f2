"""Simulated storage: one bucket under all processes, with the faults that it may have.

A write is a request that travels: it lands, or not, whether its process lives or not, and the
answer is a second message. What a bucket promises holds always: a create excludes, an object is
there whole, and a read or a listing that begins after a write's answer has it.
"""

from __future__ import annotations

import contextlib
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.sim.copies import Copy
from tests.sim.processes import BEGIN_NS, Process
from tests.sim.scheduler import Scheduler

MS = 1_000_000
SECOND = 1_000_000_000


FAILURES: Mapping[str, tuple[str, bool]] = {
    "no request": ("lose_request", False),
    "no answer": ("lose_answer", False),
    "late": ("late", False),
    "killed before": ("lose_request", True),
    "killed after": ("lose_answer", True),
}
"""How the one call may go wrong that does: the fault, and whether its process is killed."""
UNHEARD, HELD_BACK = "unheard", "held back"
"""How a commit may go wrong for a scene: it lands, and its process hears nothing of it; or it lands
when its process has looked for it in vain and sends it again."""
_COMMITS = "/_delta_log/"


@dataclass
class Weather:
    """How often a call of the storage goes wrong, and how long one takes."""

    lose_request: float = 0.0
    """The write never lands; the caller hears nothing."""
    lose_answer: float = 0.0
    """The write lands; the caller hears nothing."""
    late: float = 0.0
    """The write lands after the caller has given up."""
    busy: float = 0.0
    """The storage asks to be called less often; nothing is done."""
    resent: float = 0.0
    """A create is sent twice, and its second answer is that the object exists."""
    latency_ms: tuple[int, int] = (2, 60)
    timeout_ms: tuple[int, int] = (500, 5_000)
    """After how long a caller that hears nothing gives up."""
    late_ms: tuple[int, int] = (100, 40_000)
    page: int = 1_000
    """How many keys a page of a listing has; what changes between two pages may be in it or not."""

    @classmethod
    def of_disk(cls) -> Weather:
        """Return that of a local disk, which answers every call, and at once."""
        return cls(latency_ms=(0, 1))

    @classmethod
    def drawn(cls, source: random.Random) -> Weather:
        if source.random() < 0.15:
            return cls()
        rate = source.choice((0.01, 0.05, 0.15))

        def often() -> float:
            return source.choice((0.0, rate, rate))

        return cls(
            lose_request=often(),
            lose_answer=often(),
            late=often(),
            busy=often(),
            resent=often(),
            latency_ms=source.choice(((1, 5), (2, 60), (20, 400))),
            page=source.choice((1_000, 1_000, 7)),
        )


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_ns: int
    number: int
    """That of the write."""


@dataclass
class Bucket:
    """The objects, and what is drawn for each call."""

    scheduler: Scheduler
    weather: Weather
    note: Callable[[str], None] = lambda line: None
    """Called with each call that reaches the storage, for the run's digest."""
    counted: Counter[str] = field(default_factory=Counter)
    cut_off: set[str] = field(default_factory=set)
    """The processes that reach no storage now."""
    refuses = ""
    """What every write is refused for: ``full`` or ``read only``."""
    clock: Callable[[], int] | None = None
    """What dates objects; without it the true time."""
    failing: tuple[int, str] | None = None
    """The number of the one call that goes wrong, and how; without it the weather decides."""
    calls = 0
    on_unheard: Callable[[Process], object] = bool
    """Called with the process of an unheard commit when that has landed."""
    on_call: Callable[[Process], bool] | None = None
    """Called with the process of each request; it says whether the process dies of it."""

    def __post_init__(self) -> None:
        self.source = random.Random(self.scheduler.source.getrandbits(64))
        self.lost_commits: dict[str, str] = {}
        """How the next commit of a process goes wrong, by its name."""
        self._held_back: dict[str, Callable[[], object]] = {}
        self.objects: dict[str, _Object] = {}
        self.keys: list[str] = []
        self.writes = 0

    # What is there

    def now_ns(self) -> int:
        return BEGIN_NS + self.scheduler.now if self.clock is None else self.clock()

    def refuse_nothing(self) -> None:
        self.refuses = ""

    def set(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            at = bisect_left(self.keys, key)
            self.keys.insert(at, key)
        self.writes += 1
        self.objects[key] = _Object(data, self.now_ns(), self.writes)

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.set(key, data)
        return True

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def page_after(self, prefix: str, after: str, count: int) -> list[str]:
        at = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after))
        found = self.keys[at : at + count]
        return [key for key in found if key.startswith(prefix)]

    def hold_back(self, key: str, effect: Callable[[], object]) -> None:
        """Have a create land before the next one of the same object."""
        self._held_back[key] = effect

    def land_before(self, key: str) -> None:
        """Let a create land that was held back."""
        if (held := self._held_back.pop(key, None)) is not None:
            held()

    # What is drawn

    def latency_ns(self) -> int:
        return self.between(self.weather.latency_ms)

    def between(self, limits: tuple[int, int]) -> int:
        low, high = limits
        return int((low + (high - low) * self.source.random()) * MS)


class NoAnswer(Exception):
    """The caller hears nothing, or that it should call less often."""


class Client:
    """Calls of one process to the bucket, as requests and answers."""

    def __init__(self, bucket: Bucket, copy: Copy) -> None:
        self.bucket, self.copy = bucket, copy

    def call(
        self, operation: str, key: str, effect: Callable[[], Any], *, writes: bool = False
    ) -> Any:
        """Return what the call's effect returned where it landed; raise NoAnswer without one."""
        bucket, scheduler, process = self.bucket, self.bucket.scheduler, self.copy.process
        assert process is not None
        weather, draw = bucket.weather, bucket.source
        bucket.counted[operation] += 1
        bucket.calls += 1
        fault = None
        if bucket.failing is not None:
            if bucket.calls == bucket.failing[0]:
                fault, kills = FAILURES[bucket.failing[1]]
                bucket.counted[f"{bucket.failing[1]} {operation}"] += 1
                if kills:
                    process.kill()
        elif process.name in bucket.cut_off:
            fault = "cut off"
        elif operation == "create" and _COMMITS in key and process.name in bucket.lost_commits:
            fault = bucket.lost_commits.pop(process.name)
        elif draw.random() < weather.busy:
            fault = "busy"
        elif writes:
            for name in ("lose_request", "lose_answer", "late"):
                if draw.random() < getattr(weather, name):
                    fault = name
                    break
        elif draw.random() < weather.lose_answer:
            fault = "lose_answer"
        if fault is not None:
            bucket.counted[f"fault {fault}"] += 1
        if fault == HELD_BACK:
            bucket.hold_back(key, effect)
        went = bucket.latency_ns()
        line = f"{process.name} {operation} {key} {fault or ''}"
        if fault == "busy":
            bucket.note(line)
            scheduler.wait(went)
            raise NoAnswer(f"{operation} {key}: slow down")
        task, answers = scheduler.task(), []
        dies = bucket.on_call is not None and bucket.on_call(process)
        if dies and fault is None:
            fault = draw.choice(("lose_request", "lose_answer"))

        def land() -> None:
            bucket.note(line)
            if operation == "create":
                bucket.land_before(key)
            try:
                answers.append((True, effect()))
            except Exception as error:
                answers.append((False, error))
            if fault == UNHEARD:
                bucket.on_unheard(process)
            if fault is None:
                scheduler.after(bucket.latency_ns(), answer)

        arrived = []

        def answer() -> None:
            arrived.append(True)
            scheduler.wake(task)

        if fault == "late":
            gives_up = bucket.between(weather.timeout_ms)
            scheduler.after(gives_up + bucket.between(weather.late_ms), land)
        elif fault not in ("lose_request", "cut off", HELD_BACK):
            scheduler.after(went, land)
        if fault is not None:
            scheduler.wait(bucket.between(weather.timeout_ms))
            raise NoAnswer(f"{operation} {key}: no answer")
        while not arrived:
            scheduler.wait()
        is_result, found = answers[0]
        if not is_result:
            raise found
        return found


def s3_store(copy: Copy, bucket: Bucket) -> type:
    """Return the class that stands in for ``S3Store`` in a copy of the package.

    The package's ``RetryingStore`` is around it, and repeats what may be repeated.
    """
    base, errors = copy.get("engine.store.base"), copy.get("errors")
    outcome, entry = base.PutOutcome, base.Entry
    client = Client(bucket, copy)

    class SimulatedS3:
        is_local = False
        has_clock = True
        retry_seconds = 0.0
        cache_bytes = 0
        storage = "s3 simulated"

        def __init__(self, url: str, options: dict[str, Any]) -> None:
            self.url = url.rstrip("/")
            self._base = self.url.partition("://")[2].partition("/")[2] + "/"
            self._newest: Any = None

        @property
        def response_date(self) -> Any:
            return self._newest

        def _call(
            self, operation: str, key: str, effect: Callable[[], Any], writes: bool = False
        ) -> Any:
            dated: list[int] = []

            def dating() -> Any:
                dated.append(bucket.now_ns())
                return effect()

            try:
                return client.call(operation, self._base + key, dating, writes=writes)
            except NoAnswer as error:
                raise errors.StoreUnavailable(f"{self.url}: {error}.", url=self.url) from None
            finally:
                if dated:
                    process = copy.process
                    assert process is not None
                    host = process.host
                    self._newest = base.ResponseDate(
                        dated[0] // SECOND * 1_000, host.wall_ns() // MS, host.boot_ns() / 1e9
                    )

        def _may_write(self, key: str) -> None:
            if bucket.refuses == "read only":
                raise errors.StoreReadOnly(f"{self.url}/{key}: access denied.", url=self.url)
            if bucket.refuses == "full":
                raise errors.StoreFull(f"{self.url}/{key}: no space.", url=self.url)

        def time_ms(self) -> int:
            found: int = self._call("time", "_no_object", bucket.now_ns)
            return found // SECOND * 1_000

        def _at(self, key: str) -> Any:
            return bucket.objects.get(self._base + base.check_key(key))

        def modified_ms(self, key: str) -> int | None:
            found = self._call("head", key, lambda: self._at(key))
            return None if found is None else found.modified_ns // SECOND * 1_000 + 999

        def _get(self, key: str) -> bytes:
            found = self._call("get", key, lambda: self._at(key))
            if found is None:
                raise FileNotFoundError(f"{self.url}/{key} does not exist.")
            data: bytes = found.data
            return data

        def get(self, key: str) -> bytes:
            return self._get(key)

        def get_range(self, key: str, start: int, end: int) -> bytes:
            return self._get(key)[start:end]

        def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
            def one(key: str) -> bytes | None:
                try:
                    return self._get(key)
                except FileNotFoundError:
                    return None

            found: list[bytes | None] = copy.get("engine.store.parallel_calls").in_parallel(
                one, keys
            )
            return found

        def exists(self, key: str) -> bool:
            return self._call("head", key, lambda: self._at(key)) is not None

        def change_token(self, key: str) -> object:
            return key

        def set_root_check(self, check: Callable[[], None]) -> None: ...

        def expect(self, prefix: str, *, is_there: bool) -> None: ...

        def put_if_absent(
            self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
        ) -> Any:
            place, content = self._base + base.check_key(key), bytes(data)

            def create() -> bool:
                self._may_write(key)
                made = bucket.create(place, content)
                if made and bucket.source.random() < bucket.weather.resent:
                    bucket.counted["fault resent"] += 1
                    return False
                return made

            try:
                made = self._call("create", key, create, writes=True)
            except errors.StoreUnavailable:
                return outcome.UNKNOWN
            return outcome.CREATED if made else outcome.EXISTS

        def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
            place, content = self._base + base.check_key(key), bytes(data)

            def write() -> None:
                self._may_write(key)
                bucket.set(place, content)

            self._call("put", key, write, writes=True)

        def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
            copy.get("engine.store.parallel_calls").in_parallel(
                lambda item: self.put(*item), objects
            )

        def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
            self.put_many(objects)

        @contextlib.contextmanager
        def writer(self, key: str) -> Iterator[pa.NativeFile]:
            sink = pa.BufferOutputStream()
            yield sink
            self.put(key, sink.getvalue())

        def delete(self, keys: Iterable[str]) -> None:
            names = [self._base + base.check_key(key) for key in keys]
            if not names:
                return

            def remove() -> None:
                if bucket.refuses == "read only":
                    raise errors.StoreReadOnly(f"{self.url}: access denied.", url=self.url)
                for name in names:
                    bucket.remove(name)

            self._call("delete", f"{len(names)} to {names[-1]}", remove, writes=True)

        def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Any]:
            return []

        def _pages(self, prefix: str, after: str) -> Iterator[list[tuple[str, Any]]]:
            folder, count = self._base + base.check_prefix(prefix), bucket.weather.page
            last = after

            def look() -> list[tuple[str, Any]]:
                found = bucket.page_after(folder, last, count)
                return [(key, bucket.objects[key]) for key in found]

            while True:
                page: list[tuple[str, Any]] = self._call("list", prefix, look)
                yield page
                if len(page) < count:
                    return
                last = page[-1][0]

        def folders(self, prefix: str) -> list[str]:
            start = len(self._base + base.check_prefix(prefix))
            names = {
                key[start:].partition("/")[0]
                for page in self._pages(prefix, "")
                for key, _ in page
                if "/" in key[start:]
            }
            return sorted(names - {""})

        def open(self, key: str) -> pa.NativeFile:
            return pa.BufferReader(self._get(key))

        def make_durable(self, prefix: str) -> None: ...

        def list(
            self, prefix: str, *, after: str | None = None, before: str | None = None
        ) -> list[Any]:
            found = []
            for page in self._pages(prefix, "" if after is None else self._base + after):
                for name, kept in page:
                    key = name[len(self._base) :]
                    if base.is_visible(key) and (before is None or key < before):
                        found.append(entry(key, len(kept.data), kept.modified_ns // MS))
                if page and before is not None and page[-1][0][len(self._base) :] >= before:
                    break
            return found

    return SimulatedS3


def disk_store(copy: Copy, bucket: Bucket) -> type:
    """Return the class that stands in for ``LocalStore``: one disk under the processes of a host.

    What is written is there at once and for all of them; power does not fail.
    """
    bucket_store = s3_store(copy, bucket)
    root_changed = copy.get("engine.store.local_files").root_changed

    class SimulatedDisk(bucket_store):  # type: ignore[misc, valid-type]
        is_local = True
        has_clock = False
        storage = "disk simulated"
        response_date = None

        def __init__(self, path: str) -> None:
            super().__init__(f"file://{path}", {})
            self._base = f"{path.strip('/')}/"
            self._check: Callable[[], object] = bool

        def time_ms(self) -> int:
            return bucket.now_ns() // MS

        def modified_ms(self, key: str) -> int | None:
            found = self._call("head", key, lambda: self._at(key))
            return None if found is None else found.modified_ns // MS

        def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
            found: list[bytes | None] = []
            for key in keys:
                try:
                    found.append(self.get(key))
                except FileNotFoundError:
                    found.append(None)
            return found

        def change_token(self, key: str) -> object:
            found = self._at(key)
            return None if found is None else found.number

        def set_root_check(self, check: Callable[[], object]) -> None:
            self._check = check

        def put_if_absent(self, key: str, data: bytes, **options: Any) -> Any:
            self._check()
            after = options.get("after")
            if after is not None and self._at(after) is None and self._at(key) is None:
                raise root_changed(self.url, after)
            return super().put_if_absent(key, data, **options)

        def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
            self._check()
            super().put(key, data, durable=durable)

        def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
            for item in objects:
                self.put(*item)

        def delete(self, keys: Iterable[str]) -> None:
            self._check()
            for key in keys:
                super().delete([key])

        def list(self, prefix: str, **between: str | None) -> list[Any]:
            self._check()
            return super().list(prefix, **between)

        def fill_reserve(self, *, at_first: bool = False) -> None: ...

    return SimulatedDisk
