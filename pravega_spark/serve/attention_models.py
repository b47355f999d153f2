"""The JSON of what needs attention: times are in ms since 1970."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Finding(BaseModel):
    """One thing that needs attention, worst first in a list."""

    severity: str = Field(description="critical, warning or note.")
    kind: str = Field(description="What it is, such as group_without_reader.")
    subject: str = Field(description="stream, group, table, scope, or root.")
    name: str = Field(description="Of the subject: scope/stream, scope/group, or a scope.")
    number: float = Field(description="How much, in the unit.")
    unit: str = Field(description="events, seconds, bytes, part, streams, pages, or runs.")
    text: str
    looked_ms: int | None = Field(description="When the server looked.")
    address: str = Field(default="", description="Of a page with more, if not of the subject's.")


class Looked(BaseModel):
    """How many there are of a kind, how many the server has looked at, and how long ago."""

    total: int
    looked: int
    oldest_ms: int | None = Field(description="The oldest of the last looks; null without one.")


class AttentionAnswer(BaseModel):
    """What needs attention; ``quiet`` only if everything was looked at and nothing does."""

    quiet: bool
    findings: list[Finding]
    total: int = Field(description="All findings; the list has the worst ones.")
    critical: int
    warnings: int
    notes: int
    streams: Looked
    groups: Looked
    maintenance_ms: int | None = Field(description="When the record of maintenance was read.")
    names_ms: int | None = Field(description="When the root was listed.")
    now_ms: int
