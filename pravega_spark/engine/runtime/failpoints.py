"""Named points of the code at which a test can act: ``failpoint("append.staged")``.

Only tests install a hook (tests/harness/failpoints.py). Without one a failpoint does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], object]
"""Called with the name of the failpoint that was reached."""

_hooks: list[Hook] = []


def failpoint(name: str) -> None:
    """Call the installed hook, if any."""
    for hook in _hooks:
        hook(name)


def install(hook: Hook | None) -> None:
    """Have every failpoint of this process call ``hook``; None removes it."""
    _hooks[:] = [] if hook is None else [hook]
