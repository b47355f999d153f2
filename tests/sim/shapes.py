"""What the lines of a history must hold: each operation's arguments, and its answer.

The checkers take both for granted, since our own recorder writes them. A history that somebody
else has written or changed is looked at here first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.recorded import BadHistory, Recorded

Shape = Callable[[Any], bool]


def check(calls: Sequence[Recorded]) -> None:
    """Raise BadHistory for the first call that no checker could read; the message has its line."""
    for call in calls:
        known = OPERATIONS.get(call.operation)
        if known is None:
            raise BadHistory(f"line {call.began}: no operation is called {call.operation!r}")
        arguments, answer = known
        if not isinstance(call.arguments, Mapping):
            raise BadHistory(f"line {call.began}: the arguments are no object")
        needed = list(arguments)
        if call.operation == "scale" and "seal" in call.arguments:
            needed += PERHAPS["scale"]
        for name in (name for name in needed if name not in call.arguments):
            raise BadHistory(f"line {call.began}: {call.operation} lacks the argument {name!r}")
        for name, shape in {**arguments, **PERHAPS.get(call.operation, {})}.items():
            if name in call.arguments and not shape(call.arguments[name]):
                raise BadHistory(
                    f"line {call.began}: {call.operation} cannot have "
                    f"{name!r} {_shown(call.arguments[name])}"
                )
        is_right = answer(call.value) and _as_many(call) if call.ok else _is_refusal(call)
        if not is_right:
            raise BadHistory(
                f"line {call.ended}: {call.operation} cannot have the value {_shown(call.value)}"
            )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _as_many(call: Recorded) -> bool:
    """Return whether there is an answer for each thing that was asked for."""
    if call.operation == "scale" and "seal" in call.arguments:
        return _count(call.value)
    asked = _ANSWERED_EACH.get(call.operation)
    return asked is None or len(call.value) == len(call.arguments[asked])


def _is_refusal(call: Recorded) -> bool:
    """Return whether a refusal tells what one of its error can tell, or nothing."""
    told = {"FencingTokenMismatch": _object({"token": _text})}
    if call.operation == "write_if":
        told["ConditionFailed"] = _expected
    return _maybe(told.get(call.error or "", _anything))(call.value)


_ANSWERED_EACH = {"write": "events", "write_if": "events", "update": "changes", "get": "keys"}


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0


def _anything(value: Any) -> bool:
    return True


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _list(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _tuple(*shapes: Shape) -> Shape:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(shapes)
        and all(shape(one) for shape, one in zip(shapes, value, strict=True))
    )


def _object(shapes: Mapping[str, Shape], perhaps: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of an object that has these names, and perhaps others, and nothing else."""
    every = {**shapes, **(perhaps or {})}
    return lambda value: (
        isinstance(value, dict)
        and shapes.keys() <= value.keys() <= every.keys()
        and all(every[name](one) for name, one in value.items())
    )


def _map(shape: Shape, key: Shape = _text) -> Shape:
    return lambda value: (
        isinstance(value, dict) and all(map(key, value)) and all(map(shape, value.values()))
    )


def _one_of(*texts: str) -> Shape:
    return lambda value: value in texts


def _segment_text(value: Any) -> bool:
    return _text(value) and len(value) < 20 and value.isdecimal() and str(int(value)) == value


def _segment(value: Any) -> bool:
    return _segment_text(value) or _count(value)


def _offset(value: Any) -> bool:
    return _count(value) and value < ENDLESS


def _in_cut(value: Any) -> bool:
    return _count(value) and value <= ENDLESS


def _tokens(value: Any) -> bool:
    return _text(value) and value.isascii() and value[-1:] in ("", ";")


def _real(value: Any) -> bool:
    return _number(value) or isinstance(value, float)


_POSITION = _tuple(_segment, _offset)
_VERSION = _tuple(_count, _offset)
_CUT = _map(_in_cut, _segment_text)
_CUTS = _map(_CUT)
_PAIRS = _list(_tuple(_maybe(_text), _text))
_EVENTS = _list(_tuple(_segment, _offset, _maybe(_text), _text))
_RANGES = _list(_tuple(_real, _real))
_STREAM: dict[str, Shape] = {"stream": _text}
_COPY: dict[str, Shape] = {"copy": _text}
_TRANSACTION: dict[str, Shape] = {"transaction": _text}
_GROUP: dict[str, Shape] = {"group": _text}
_READER: dict[str, Shape] = {**_GROUP, "reader": _text}
_TABLE: dict[str, Shape] = {"table": _text}
_STATE: dict[str, Shape] = {"state": _text}
_WRITE: dict[str, Shape] = {**_STREAM, "writer": _text, "events": _PAIRS}
_ENTRY = _tuple(_text, _VERSION)
_UPDATES = _list(_text)
_ACKNOWLEDGE = _one_of("next", "checkpoint", "transaction")


def _expected(value: Any) -> bool:
    shapes = {"position": _POSITION, "cut": _CUT, "number": _count}
    return (
        isinstance(value, dict)
        and len(value) == 1
        and all(name in shapes and shapes[name](one) for name, one in value.items())
    )


def _version(value: Any) -> bool:
    return value == "absent" or _VERSION(value)


_CHANGE = _object({"key": _text, "value": _maybe(_text)}, {"expected": _maybe(_version)})


def _handed(value: Any) -> bool:
    event = _object({"stream": _text, "position": _POSITION, "event": _text})
    return event(value) or _object({"checkpoint": _text})(value)


OPERATIONS: dict[str, tuple[dict[str, Shape], Shape]] = {
    "write": (_WRITE, _list(_POSITION)),
    "write_if": ({**_WRITE, "expected": _expected}, _list(_POSITION)),
    "open_writer": ({**_STREAM, "writer": _text}, _count),
    "read": (_STREAM, _object({"from": _CUT, "to": _CUT, "events": _EVENTS})),
    "layout": (_STREAM, _map(_list(_segment), _segment_text)),
    "scale": (_STREAM, _anything),
    "segments": (_STREAM, _RANGES),
    "keep_version": ({**_STREAM, "version": _count}, _anything),
    "autoscale": ({**_STREAM, "minimum": _count}, _maybe(_count)),
    "seal": (_STREAM, _anything),
    "backup": (_COPY, _anything),
    "restore": (_COPY, _anything),
    "live_on": (_COPY, _anything),
    "read_copy": (
        {**_COPY, **_STREAM},
        _object({"from": _CUT, "events": _EVENTS}, {"open": _count}),
    ),
    "truncate": ({**_STREAM, "cut": _CUT}, _maybe(_CUT)),
    "retain": (_STREAM, _maybe(_CUT)),
    "subscribe": ({**_STREAM, "subscriber": _text}, _anything),
    "release": ({**_STREAM, "subscriber": _text, "cut": _CUT}, _anything),
    "unsubscribe": ({**_STREAM, "subscriber": _text}, _anything),
    "stage": ({**_TRANSACTION, "streams": _map(_PAIRS)}, _anything),
    "commit": (_TRANSACTION, _anything),
    "abort": (_TRANSACTION, _anything),
    "settle": ({}, _anything),
    "create_group": ({**_GROUP, "streams": _CUTS}, _anything),
    "join": ({**_READER, "acknowledge": _ACKNOWLEDGE, "streams": _list(_text)}, _anything),
    "next": (_READER, _maybe(_handed)),
    "leave": (_READER, _anything),
    "expire": (_READER, _anything),
    "drain": (_READER, _anything),
    "checkpoint": ({**_GROUP, "name": _text}, _CUTS),
    "stream_cuts": (_GROUP, _CUTS),
    "reset": ({**_GROUP, "to": _CUTS}, _maybe(_count)),
    "update": ({**_TABLE, "changes": _list(_CHANGE)}, _list(_VERSION)),
    "get": ({**_TABLE, "keys": _list(_text), "fresh": _flag}, _list(_maybe(_ENTRY))),
    "scan": (_TABLE, _map(_ENTRY)),
    "fence": ({**_STREAM, "token": _text}, _anything),
    "fencing_token": (_STREAM, _text),
    "update_state": ({**_STATE, "update": _text}, _UPDATES),
    "fetch_updates": (_STATE, _UPDATES),
    "note_time": ({**_STREAM, "writer": _text, "time": _number}, _anything),
    "forget": ({**_STREAM, "writer": _text}, _anything),
    "watermark": (_STREAM, _maybe(_object({"lower": _number, "upper": _number, "cut": _CUT}))),
    "delete_stream": (_STREAM, _anything),
    "write_bytes": ({**_STREAM, "writer": _text, "text": _tokens}, _anything),
    "read_bytes": (_STREAM, _object({"from": _count, "text": _text})),
    "truncate_bytes": ({**_STREAM, "before": _count}, _anything),
    "find_damage": ({"error": _text, "what": _text}, _anything),
    "update_stream": (_STREAM, _anything),
    "update_table": (_TABLE, _anything),
    **{
        name: ({}, _anything)
        for name in (
            *("compact", "sweep", "sweep_scope", "maintain", "update_settings"),
            *("update_group", "update_watermark", "delete_table"),
            *("create", "sweep_transactions", "cancel_checkpoints"),
        )
    },
}
"""Of each operation the arguments that it must have, and its answer when it is ok."""

PERHAPS: dict[str, dict[str, Shape]] = {
    "write": {"token": _maybe(_text), "session": _maybe(_text)},
    "write_if": {"token": _maybe(_text), "session": _maybe(_text)},
    "open_writer": {"session": _maybe(_text)},
    "read": {"from": _maybe(_CUT), "to": _maybe(_CUT)},
    "scale": {"seal": _list(_segment_text), "sealed": _RANGES, "ranges": _RANGES},
    "retain": {"policy": _text},
    "subscribe": {"cut": _maybe(_CUT)},
    "commit": {"wait": _flag, "append": _flag, "reads": _list(_tuple(_text, _text))},
    "join": {"retention": _maybe(_text)},
    "fence": {"expected": _maybe(_text)},
}
"""Of each operation what its arguments may have beside them."""
