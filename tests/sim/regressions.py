"""Seeds that failed once, with what they found; each is played with the others.

A seed means something for one state of the workloads: where a change of theirs makes it another
course of things, a test of its own keeps what it found, and it leaves this list.
"""

from __future__ import annotations

FOUND: dict[int, str] = {}
