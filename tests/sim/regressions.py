"""Seeds that failed once, with what they found; each is played with the others."""

from __future__ import annotations

FOUND = {
    72: "a call for many objects was repeated as a whole, and ended never on a busy storage",
}
