"""Lives that were drawn, as tests tell them from the first lives of names."""

from __future__ import annotations

DRAWN = 1 << 50
"""Every drawn life is higher: the seconds since 1970 are in its high part."""
