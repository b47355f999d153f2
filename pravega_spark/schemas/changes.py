"""What may change in the schema of a stream: it grows by nullable columns, and comments change."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import SchemaChangeRefused
from pravega_spark.schemas.column_types import check_paths


def check_change(old: pa.Schema, new: pa.Schema, where: str) -> None:
    """Raise SchemaChangeRefused unless data of the old canonical schema is data of the new one.

    Raises InvalidSchema for columns that Parquet cannot write.
    """
    _check_fields(list(old), list(new), where, "")
    check_paths(new, old)


def _check_fields(old: list[pa.Field], new: list[pa.Field], where: str, path: str) -> None:
    names, known = [field.name for field in new], [field.name for field in old]
    given, before = frozenset(names), frozenset(known)
    for field in old:
        if field.name not in given:
            raise _refused(
                where, path + field.name, "would be dropped or renamed",
                "keep it, and write nulls; or copy the events to a new stream",
            )  # fmt: skip
    if [name for name in names if name in before] != known:
        moved = next(f.name for f, name in zip(old, names, strict=False) if f.name != name)
        raise _refused(
            where, path + moved, "would move", "keep the order, and add new columns at the end"
        )
    if names[: len(old)] != known:
        first = next(name for name in names if name not in before)
        raise _refused(
            where, path + first, "is new and not at the end", "add new columns at the end"
        )
    for present, after in zip(old, new, strict=False):
        _check_field(present, after, where, path + present.name)
    for field in new[len(old) :]:
        if not field.nullable:
            raise _refused(
                where, path + field.name, "is new and required, and older events lack it",
                "add it as a nullable one",
            )  # fmt: skip


def _check_field(old: pa.Field, new: pa.Field, where: str, path: str) -> None:
    if old.nullable != new.nullable:
        change = "required" if old.nullable else "nullable"
        raise _refused(
            where, path, f"would become {change}",
            "keep it, since older events and older writers go by the present schema",
        )  # fmt: skip
    _check_type(old.type, new.type, where, path)


def _check_type(old: pa.DataType, new: pa.DataType, where: str, path: str) -> None:
    if old == new:
        return
    if types.is_struct(old) and types.is_struct(new):
        _check_fields(list(old), list(new), where, f"{path}.")
    elif types.is_map(old) and types.is_map(new):
        _check_type(old.key_type, new.key_type, where, f"{path}.key")
        _check_type(old.item_type, new.item_type, where, f"{path}.value")
    elif types.is_list(old) and types.is_list(new):
        _check_type(old.value_type, new.value_type, where, f"{path}.element")
    else:
        raise _refused(
            where, path, f"would change from {old} to {new}, which needs a feature of Delta that "
            "not every reader has",
            "add a column of the new type, or copy the events to a new stream",
        )  # fmt: skip


def _refused(where: str, path: str, change: str, way: str) -> SchemaChangeRefused:
    return SchemaChangeRefused(
        f"{where}: column {path} {change}; {way}.", column=path.partition(".")[0]
    )
