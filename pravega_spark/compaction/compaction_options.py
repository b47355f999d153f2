"""The options of a compaction: the target size, and when chunks are left alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_settings import read_sources
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.root_settings import (
    EffectiveSettings,
    GivenSettings,
    SettingSources,
    parse_flags,
)


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """The options of a compaction. A setting that no flag gives is the stream's or the root's."""

    flags: GivenSettings = field(default_factory=dict)
    root: GivenSettings | None = None
    """The settings of the root, if the caller has read them for many streams."""
    include_newest: bool = False
    """Whether to merge chunks, too, that readers at the tail may be about to read."""

    @classmethod
    def parse(
        cls, *, include_newest: bool = False, **flags: str | float | None
    ) -> CompactionOptions:
        """Return the options of a call from its flags, by the names of the settings.

        These are ``compact_target`` and ``compact_head_after``; None leaves a setting as it is.
        ``include_newest`` also merges chunks that have just been written.
        Raises InvalidConfiguration.
        """
        try:
            return cls(parse_flags(flags), include_newest=include_newest)
        except InvalidConfiguration as error:
            text = str(error)
            for name in flags:
                argument = name.removeprefix("compact_")
                text = text.replace(f"the setting {name}", f"the argument {argument}")
            raise InvalidConfiguration(text) from None

    def settings(self, stream: StreamLog, view: StreamView) -> EffectiveSettings:
        """Return the settings that hold for a compaction on a view."""
        if self.root is None:
            sources = read_sources(stream, self.flags)
        else:
            sources = SettingSources(self.root, self.flags)
        return sources.of_stream(view.record.configuration.settings)


DEFAULTS: Final = CompactionOptions()
