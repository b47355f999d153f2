"""Events whose contents look alike, as those of real streams do."""

from __future__ import annotations

import numpy as np

_WORDS = (
    b"a stream is read by segment and each event has an offset that never changes while chunks are "
    b"merged into larger files so that readers pay less for old events"
).split(b" ")


def json_events(count: int, seed: int = 1) -> list[bytes]:
    """Return JSON events of about 120 B with a few varying fields."""
    random = np.random.default_rng(seed)
    fields = zip(
        np.cumsum(random.integers(1, 40, count)).tolist(),
        random.integers(0, 10_000, count).tolist(),
        random.integers(0, 500, count).tolist(),
        (random.integers(0, 100_000, count) / 100).tolist(),
        random.integers(0, 20, count).tolist(),
        strict=True,
    )
    return [
        b'{"ts":%d,"user":"u-%05d","page":"/p/%03d","ms":%.2f,"status":%d,"agent":"Mozilla/5.0"}'
        % (1_700_000_000_000 + time, user, page, ms, 200 if status else 500)
        for time, user, page, ms, status in fields
    ]


def texts(count: int, seed: int = 1) -> list[bytes]:
    """Return texts of 100 B from a small vocabulary."""
    chosen = np.random.default_rng(seed).integers(0, len(_WORDS), (count, 40)).tolist()
    return [b" ".join([_WORDS[word] for word in row])[:100].ljust(100) for row in chosen]
