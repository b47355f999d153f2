"""The naming rules of scopes, streams, groups, readers, writers, transactions and checkpoints.

Public calls check names once. Every allowed name works on every store. Where a file system ignores
case, names that differ in case alone are one folder, which nothing checks.
"""

from __future__ import annotations

import re

from pravega_spark.errors import InvalidName
from pravega_spark.values.checks import shown

MAX_SCOPE_LENGTH = 255
MAX_NAME_LENGTH = 250
TABLES_FOLDER = "_kv_tables"
"""The folder of a scope's key-value tables; no name that a user chooses has an underscore."""
GROUPS_FOLDER = "_reader_groups"
"""The folder of a scope's reader groups."""
_LOG_PARTS = 3
_ALLOWED = re.compile(r"[A-Za-z0-9.\-]+")
_DOTS = {".", ".."}
_POSITION_WORDS = ("earliest", "latest", "start", "end")
"""Words that stand for positions themselves."""
_TRANSACTION = re.compile(r"[0-9a-f]{8}[0-9a-z]{8,56}")


def is_name(name: str, limit: int = MAX_NAME_LENGTH) -> bool:
    """Return True if the naming rule allows ``name``."""
    return len(name) <= limit and name not in _DOTS and _ALLOWED.fullmatch(name) is not None


def is_number(text: str) -> bool:
    """Return True if a text consists of ASCII digits."""
    return text.isascii() and text.isdigit()


def check_name(kind: str, name: object, limit: int = MAX_NAME_LENGTH) -> str:
    """Return ``name`` if it is valid for a ``kind``; raise InvalidName with the rule if not.

    The rule is Pravega's: letters, digits, ``.`` and ``-``. ``_`` is reserved for internal names;
    ``.`` and ``..`` are refused, since names become folders.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name must be a str, not {type(name).__name__}: {shown(name)}.")
    if not is_name(name, len(name)):
        raise InvalidName(
            f"{kind} name {name[:MAX_SCOPE_LENGTH]!r} is not allowed: use letters of ASCII, "
            "digits, '.' and '-' only, at least one of them, and not '.' or '..' alone."
        )
    if len(name) > limit:
        raise InvalidName(
            f"{kind} name {name[:40]!r}... has {len(name)} characters; at most {limit} are allowed."
        )
    return name


def check_scope(name: object) -> str:
    """Return ``name`` if it is a valid name of a scope."""
    return check_name("scope", name, MAX_SCOPE_LENGTH)


def check_checkpoint(name: object) -> str:
    """Return ``name`` if it is a valid name of a group's checkpoint; raise InvalidName if not.

    No stored object has this name, so any text with a UTF-8 form is valid.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidName(
            f"a checkpoint's name must be a text of 1 to {MAX_NAME_LENGTH} characters, got "
            f"{shown(name)}; without a name, the group chooses one."
        )
    if not has_utf8(name):
        raise InvalidName(
            f"the checkpoint's name {shown(name)} has no UTF-8 form: replace the lone surrogates "
            "in it."
        )
    return name


def check_cut(name: object) -> str:
    """Return the name of a saved cut; raise InvalidName for one that reads as another position."""
    checked = check_name("saved cut", name)
    if not is_cut_name(checked):
        raise InvalidName(
            f"a saved cut cannot be named {checked!r}: {', '.join(_POSITION_WORDS)} are positions, "
            "and so are names that begin with '-'."
        )
    return checked


def is_cut_name(text: str) -> bool:
    """Return True if a text can name a saved cut: it is neither a word for a position nor a cut."""
    return is_name(text) and text not in _POSITION_WORDS and not text.startswith("-")


def has_utf8(text: str) -> bool:
    """Return True if a text can be encoded: one with a lone surrogate cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def split_stream(stream: object) -> tuple[str, str]:
    """Split ``"scope/stream"`` into its two checked names."""
    return _split("stream", stream)


def split_table(table: object) -> tuple[str, str]:
    """Split ``"scope/table"`` into its two checked names."""
    return _split("table", table)


def table_log(scope: str, name: str) -> str:
    """Return the internal name of a key-value table's change log."""
    return f"{scope}/{TABLES_FOLDER}/{name}"


def folded_path(log_name: str) -> str:
    """Return the key of the folded table, by the internal name of the change log."""
    return f"{log_name}/table"


def table_of_log(name: str) -> str | None:
    """Return the name of the table whose change log has this internal name; None for a stream."""
    scope, path = split_log(name)
    table = path.removeprefix(f"{TABLES_FOLDER}/")
    return None if table == path else f"{scope}/{table}"


def split_log(name: object) -> tuple[str, str]:
    """Split the name of a stream, or of a table's change log, into the scope and the path in it."""
    parts = name.split("/") if isinstance(name, str) else []
    if len(parts) == _LOG_PARTS and parts[1] == TABLES_FOLDER:
        scope, table = split_table(f"{parts[0]}/{parts[2]}")
        return scope, f"{TABLES_FOLDER}/{table}"
    return split_stream(name)


def split_path(path: str) -> tuple[str, str]:
    """Return the scope and the stream to which a table at a path below the root belongs.

    The stream of a key-value table's change log is its path in the scope. A table of the scope or
    of the root has no stream, and one of the root no scope: those are empty.
    """
    scope, _, rest = path.partition("/")
    if not rest:
        return "", ""
    parts = rest.split("/")
    if parts[0] == TABLES_FOLDER:
        return scope, "/".join(parts[:2])
    return scope, "" if parts[0].startswith("_") else parts[0]


def split_group(group: object) -> tuple[str, str]:
    """Split ``"scope/group"`` into its two checked names."""
    return _split("reader group", group)


def check_subscriber(name: object) -> str:
    """Return the name of any subscriber: a reader group, or a plain one without a slash."""
    if isinstance(name, str) and "/" in name:
        return "/".join(split_group(name))
    return check_name("subscriber", name)


def check_plain_subscriber(name: object) -> str:
    """Return the name of a subscriber that is not a reader group: without a slash."""
    if isinstance(name, str) and "/" in name:
        raise InvalidName(
            f"subscriber name {shown(name)} has a slash, as only reader groups' names have: choose "
            'a name without one, or create the reader group with retention="manual".'
        )
    return check_name("subscriber", name)


def is_group(subscriber: str) -> bool:
    """Return True if a subscriber is a reader group, ``scope/group``, and no plain one."""
    return "/" in subscriber


def _split(kind: str, full: object) -> tuple[str, str]:
    if not isinstance(full, str) or full.count("/") != 1:
        short = kind.rpartition(" ")[2]
        raise InvalidName(f"a {kind} is named 'scope/{short}', with one slash; got {shown(full)}.")
    scope, name = full.split("/")
    return check_scope(scope), check_name(kind, name)


def is_transaction(name: object) -> bool:
    """Return True for the id of a transaction, of any stream."""
    return isinstance(name, str) and _TRANSACTION.fullmatch(name) is not None


def check_transaction(name: object) -> str:
    """Return the id of a transaction of any stream; raise InvalidName for anything else."""
    if not isinstance(name, str) or not is_transaction(name):
        raise InvalidName(
            "a transaction's id has 32 hexadecimal digits, such as Transaction.id returns; got "
            f"{shown(name)}."
        )
    return name
