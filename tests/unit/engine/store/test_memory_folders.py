from __future__ import annotations

import random

from pravega_spark.engine.store.memory import MemoryStore


def test_listings_equal_those_of_a_full_search() -> None:
    store, dice = MemoryStore(), random.Random(1)
    keys = [f"{a}/{b}{c}" for a in ("a", "ab", "a-b") for b in ("", "x/", "x/y/") for c in "123"]
    for _ in range(2_000):
        key = dice.choice(keys)
        if dice.random() < 0.5:
            store.put(key, b"")
        else:
            store.delete([key])
        prefix, after = dice.choice(["", "a", "ab", "a/x", "a-b/x/y", "absent"]), dice.choice(keys)
        below = [k for k in sorted(store._objects) if k.startswith(f"{prefix}/") or not prefix]
        assert [entry.key for entry in store.list(prefix)] == below
        assert [e.key for e in store.list(prefix, after=after)] == [k for k in below if k > after]
        rests = (key[len(prefix) + 1 if prefix else 0 :] for key in below)
        assert store.folders(prefix) == sorted({r.partition("/")[0] for r in rests if "/" in r})
