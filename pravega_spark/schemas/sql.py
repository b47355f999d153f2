"""Columns and types as SQL declares them: ``carrier string not null, delay int comment 'min'``.

It is the DDL of Spark and Delta. Types inside of types are as Spark prints them,
``struct<name:string>``, and are read with a space instead of the colon, too.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import MAX_COLUMN_DEPTH
from pravega_spark.schemas.delta import delta_type
from pravega_spark.values.checks import shown

_SQL: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_OTHERS: Final = {
    **{sql: delta for delta, sql in _SQL.items()},
    **{"real": "float", "dec": "decimal", "numeric": "decimal"},
}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<sign>[<>(),:])"
    r"|(?P<word>[^\s<>(),:`']+))",
    re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"\w+")
_WAY: Final = (
    "declare columns as SQL does: carrier string not null, price decimal(8,2), stops array<string>"
)


def sql_columns(schema: pa.Schema, *, comments: bool = False) -> str:
    """Return the columns of a canonical schema as SQL declares them."""
    return ", ".join(_declared(field, " ", comments=comments) for field in schema)


def sql_type(kind: pa.DataType, *, comments: bool = False) -> str:
    """Return a canonical type as SQL names it."""
    if types.is_struct(kind):
        inner = (_declared(field, ":", comments=comments) for field in kind)
        return f"struct<{','.join(inner)}>"
    if types.is_map(kind):
        key, value = (sql_type(one, comments=comments) for one in (kind.key_type, kind.item_type))
        return f"map<{key},{value}>"
    if types.is_list(kind):
        return f"array<{sql_type(kind.value_type, comments=comments)}>"
    name = str(delta_type(kind))
    return _SQL.get(name, name)


def quoted_name(name: str) -> str:
    """Return the name of one column, schema or table in backquotes, as Spark's SQL takes any."""
    return f"`{name.replace('`', '``')}`"


def quoted_text(text: str) -> str:
    """Return a text as Spark's SQL takes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _declared(field: pa.Field, separator: str, *, comments: bool) -> str:
    name = field.name
    if not _PLAIN_NAME.fullmatch(name):
        name = quoted_name(name)
    kind = sql_type(field.type, comments=comments)
    text = f"{name}{separator}{kind}{'' if field.nullable else ' not null'}"
    comment = (field.metadata or {}).get(b"comment", b"").decode() if comments else ""
    if not comment:
        return text
    return f"{text} comment {quoted_text(comment)}"


def columns_from_sql(text: str) -> list[dict[str, Any]]:
    """Return declared columns as fields of Delta's JSON; raise InvalidSchema for what is none."""
    reader = _SqlReader(text)
    fields = reader.fields("", "")
    reader.end()
    return fields


def type_from_sql(text: str, column: str) -> Any:
    """Return the type of a column in Delta's JSON; raise InvalidSchema for what is none."""
    reader = _SqlReader(text)
    found = reader.type(column)
    reader.end()
    return found


class _SqlReader:
    """Reads one text, token by token."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidSchema(f"columns are declared by a text, got {shown(text)}: {_WAY}.")
        self._text, self._at = text, 0
        self._kind, self._token = "", ""
        self._advance()

    def _advance(self) -> str:
        """Return the present token, and go to the next one; its kind is "" at the end."""
        token, found = self._token, _TOKEN.match(self._text, self._at)
        if found is None:
            if self._text[self._at :].strip():
                self._fail(self._text[self._at :].strip()[:20])
            self._kind, self._token = "", ""
        else:
            self._at, self._kind = found.end(), str(found.lastgroup)
            self._token = found[self._kind]
        return token

    def _fail(self, token: str | None = None) -> NoReturn:
        found = self._token if token is None else token
        where = f"at {shown(found)}" if found else "at its end"
        raise InvalidSchema(f"{shown(self._text)} declares no columns, {where}: {_WAY}.")

    def _take(self, sign: str) -> bool:
        """Go on if the present token is this sign or word; return whether it is."""
        is_there = self._kind in ("sign", "word") and self._token.lower() == sign
        if is_there:
            self._advance()
        return is_there

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            self._fail()

    def end(self) -> None:
        """Raise InvalidSchema unless the text ends here."""
        if self._kind:
            self._fail()

    def fields(self, path: str, closing: str) -> list[dict[str, Any]]:
        """Return fields up to a sign, or to the end."""
        found = [self._field(path)]
        while self._take(","):
            found.append(self._field(path))
        if closing:
            self._need(closing)
        return found

    def _field(self, path: str) -> dict[str, Any]:
        if self._kind not in ("quoted", "word"):
            self._fail()
        is_quoted = self._kind == "quoted"
        token = self._advance()
        name = token[1:-1].replace("``", "`") if is_quoted else token
        self._take(":")
        kind = self.type(f"{path}.{name}" if path else name)
        is_required = self._take("not")
        if is_required:
            self._need("null")
        metadata = {"comment": self._comment()} if self._take("comment") else {}
        return {"name": name, "type": kind, "nullable": not is_required, "metadata": metadata}

    def _comment(self) -> str:
        if self._kind != "text":
            self._fail()
        return re.sub(r"\\(.)", r"\1", self._advance()[1:-1], flags=re.DOTALL)

    def type(self, path: str) -> Any:
        if self._kind != "word" or path.count(".") > MAX_COLUMN_DEPTH:
            self._fail()
        name = self._advance().lower()
        if name == "array":
            self._need("<")
            element = self.type(f"{path}.element")
            self._need(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        if name == "map":
            self._need("<")
            key = self.type(f"{path}.key")
            self._need(",")
            value = self.type(f"{path}.value")
            self._need(">")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if name == "struct":
            self._need("<")
            return {"type": "struct", "fields": self.fields(path, ">")}
        plain = _OTHERS.get(name, name)
        return f"decimal({self._digits()})" if plain == "decimal" else plain

    def _digits(self) -> str:
        if not self._take("("):
            return "10,0"
        precision, scale = self._advance(), "0"
        if self._take(","):
            scale = self._advance()
        self._need(")")
        return f"{precision},{scale}"
