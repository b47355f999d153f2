"""Tags: texts that users put on streams and tables, and find them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import MAX_TAG_LENGTH, MAX_TAGS
from pravega_spark.values.names import has_utf8


def check_tags(
    tags: Iterable[str], most: int | None = MAX_TAGS, *, title: str = "a stream"
) -> frozenset[str]:
    """Return the tags as a set if they are within the limits; ``most`` None means no limit.

    ``title`` is what errors call the owner of the tags.
    """
    if isinstance(tags, (str, Mapping)) or not isinstance(tags, Iterable):
        raise InvalidConfiguration(f"tags must be a set of texts, got {shown(tags)}.")
    given = list(tags)
    for tag in given:
        if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_LENGTH:
            raise InvalidConfiguration(
                f"a tag must be a text of 1 to {MAX_TAG_LENGTH} characters, got {shown(tag)}."
            )
        if not has_utf8(tag):
            raise InvalidConfiguration(
                f"the tag {shown(tag)} has no UTF-8 form: replace the lone surrogates in it."
            )
    found = frozenset(given)
    if most is not None and len(found) > most:
        raise InvalidConfiguration(f"{title} has at most {most} tags, got {len(found)}.")
    return found
