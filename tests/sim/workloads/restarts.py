"""What whoever starts a process again may have changed: of the root, the stream, the group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.sim.lives import Life
from tests.sim.workloads.common import stream_of

SETTINGS: Mapping[str, tuple[str | None, ...]] = {
    "grace": ("1 minute", "1 hour", None),
    "retain": ("0 s", "1 minute", "1 hour", None),
    "compact_target": ("16 KiB", "64 MiB", None),
    "compact_head_after": ("1 minute", "1 hour", None),
    "sample_every": ("1 s", "1 minute", None),
}
"""None is the default again. Others change what an answer means: when a subscriber or a writer id
is forgotten."""


def change(life: Life) -> None:
    """Change something once; a change that fails is not made again."""
    kinds = {"update_settings": _root, "update_stream": _stream, "update_group": _group}
    kinds[life.source.choice(list(kinds))](life)


def _drawn(life: Life) -> dict[str, Any]:
    names = life.source.sample(list(SETTINGS), life.source.randint(1, 3))
    return {name: life.source.choice(SETTINGS[name]) for name in names}


def _root(life: Life) -> None:
    changed = _drawn(life)
    life.call("update_settings", partial(life.manager().update_settings, **changed), **changed)


def _stream(life: Life) -> None:
    policy, stream = life.package.RetentionPolicy, stream_of(life)
    if life.source.random() < 0.5:
        kept = life.source.choice(
            (
                None,
                policy.by_size("64 MiB"),
                policy.by_consumption("1 minute"),
                policy.by_consumption(),
            )
        )
        changed: dict[str, Any] = {"retention": kept}
    else:
        changed = {"settings": _drawn(life)}
    told = {name: str(value) for name, value in changed.items()}
    life.call("update_stream", partial(stream.update, **changed), stream=life.stream, **told)


def _group(life: Life) -> None:
    if life.group not in life.made:
        return
    draw = life.source
    changed = draw.choice(
        (
            {"refresh": draw.choice(("1 s", "10 s"))},
            {"checkpoint_interval": draw.choice(("5 s", "20 s", None))},
            {"max_outstanding_checkpoints": draw.choice((1, 4))},
        )
    )

    def update() -> Any:
        return life.manager().reader_group(life.group).update(**changed)

    life.call("update_group", update, group=life.group, **changed)
