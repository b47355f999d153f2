"""The options of a retention run: its flags, and whether it sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pravega_spark.arguments import check_flag
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_settings import read_sources
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.root_settings import (
    EffectiveSettings,
    GivenSettings,
    SettingSources,
    parse_flags,
)


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The options of a run. A setting that no flag gives is the stream's or the root's."""

    flags: GivenSettings = field(default_factory=dict)
    sweep: bool = True
    root: GivenSettings | None = None
    """The settings of the root, if the caller has read them for many streams."""

    def settings(self, stream: StreamLog, view: StreamView) -> EffectiveSettings:
        """Return the settings that hold for a run on a view."""
        if self.root is None:
            sources = read_sources(stream, self.flags)
        else:
            sources = SettingSources(self.root, self.flags)
        return sources.of_stream(view.record.configuration.settings)


DEFAULTS: Final = RetentionOptions()


def parse_options(*, sweep: bool = True, **flags: str | float | None) -> RetentionOptions:
    """Return the options of a run from its flags, by the names of the settings.

    A flag is a duration such as ``"30 min"``, or seconds; None leaves the setting as it is.
    """
    return RetentionOptions(parse_flags(flags), check_flag("sweep", sweep))
