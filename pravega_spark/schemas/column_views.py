"""Columns in the view encoding, as plain ones. Imports no kernels of Arrow: writers need none."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import types

_VIEWS: Final = (
    (types.is_string_view, pa.large_string()),
    (types.is_binary_view, pa.large_binary()),
)


def without_views(values: Any) -> Any:
    """Return an array without a view encoding, which few functions of Arrow take."""
    for is_view, plain in _VIEWS:
        if is_view(values.type):
            return values.cast(plain)
    return values
