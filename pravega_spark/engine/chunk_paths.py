"""The path of a table's file: ``data/<folder>/<name>.parquet``.

A file is staged where it stays. The name of its folder says when it may be deleted without a
commit: ``v<version>`` is the version of the log at which the file was staged, ``t-<id>`` the
transaction that it belongs to.
"""

from __future__ import annotations

import re

from pravega_spark.values.limits import OFFER_FOLDER_VERSIONS

_VERSION = re.compile(r"data/v([0-9]+)/")
_TRANSACTION = re.compile(r"data/t-([^/]+)/[^/]+")
_STAGED = re.compile(r"data/(?:v[0-9]+|t-[^/]+)/[^/.][^/]*")


def file_path(folder: str, name: str) -> str:
    """Return the path of a new file in its table."""
    return f"data/{folder}/{name}.parquet"


def version_folder(version: int) -> str:
    """Return the folder of files that are staged at a version of the log.

    Names sort as the versions do, so that a sweep lists a range of them. Older releases wrote
    versions without leading zeros.
    """
    return f"v{version:020d}"


def chunk_folder(transaction_id: str) -> str:
    """Return the folder of a transaction's chunks."""
    return f"t-{transaction_id}"


def offer_version(version_seen: int, horizon: int) -> int:
    """Return the version whose folder holds the chunks that are offered at a version of the log.

    Offers of OFFER_FOLDER_VERSIONS share a folder, so that few folders are listed. The folder of a
    version below the horizon would make the offer void.
    """
    return max(version_seen - version_seen % OFFER_FOLDER_VERSIONS, horizon)


def staged_version(path: str) -> int | None:
    """Return the version at which a file was staged, by its path; None for other files."""
    found = _VERSION.match(path)
    return None if found is None else int(found[1])


def transaction_of(path: str) -> str | None:
    """Return the id of the transaction that a file was staged for; None for other files."""
    found = _TRANSACTION.fullmatch(path)
    return None if found is None else found[1]


def is_staged(path: str) -> bool:
    """Return whether a path is one at which this package stages files."""
    return _STAGED.fullmatch(path) is not None
