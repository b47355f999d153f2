"""Rows of typed streams as JSON, for people and for programs that read lines."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any


def row_text(row: Mapping[str, Any]) -> str:
    """Return the row of a typed stream as JSON."""
    return json.dumps(plain_value(row), ensure_ascii=False)


def plain_value(value: Any) -> Any:
    """Return a value of a column as one that JSON has: times in ISO 8601, bytes in base64."""
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return finite_or_text(value)


def finite_or_text(value: Any) -> Any:
    """Return a value; a float that JSON lacks as the text NaN, Infinity or -Infinity."""
    is_number = not isinstance(value, float) or math.isfinite(value)
    return value if is_number else json.dumps(value)
