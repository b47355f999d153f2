"""What mkdocs calls while it builds the site: for its navigation, and for generated pages."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from site_pages.navigation import navigation
from site_pages.reference_pages import reference_pages
from site_pages.root_pages import ROOT_PAGES, relinked, root_page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, in which every decision and every page of the reference has a place."""
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, content=root_page(name)))
    for place, (_, text) in reference_pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links that lead out of docs/ to the pages that the site has for them."""
    place = PurePosixPath(page.file.src_uri)
    if page.file.generated_by:
        return markdown
    return relinked(markdown, PurePosixPath("docs") / place.parent, place)
