"""Columns in the view encoding, as plain ones. Imports no kernels of Arrow: writers need none."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import types

_VIEWS: Final = (
    (types.is_string_view, pa.large_string()),
    (types.is_binary_view, pa.large_binary()),
)
_VIEWS_STAY: Final = int(pa.__version__.partition(".")[0]) < 18
"""Arrow 17 casts no views."""


def without_views(values: Any) -> Any:
    """Return an array without a view encoding, which few functions of Arrow take."""
    for is_view, plain in _VIEWS:
        if is_view(values.type):
            return _rebuilt(values, plain) if _VIEWS_STAY else values.cast(plain)
    return values


def _rebuilt(values: Any, plain: pa.DataType) -> Any:
    """Return views as plain values by way of Python, also texts that are not UTF-8."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_rebuilt(chunk, plain) for chunk in values.chunks], plain)
    held = values.view(pa.binary_view()).to_pylist()
    return pa.array(held, pa.large_binary()).view(plain)
