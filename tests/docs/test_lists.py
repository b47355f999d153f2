"""The lists of the pages are those of the code: tables, options, kinds of work, folders."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import ParamValidator

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.store import open_store
from pravega_spark.errors import InvalidOption
from pravega_spark.jobs.maintenance import KINDS_OF_JOBS, PROG
from pravega_spark.maintenance.work import WORKS
from pravega_spark.spark import options
from pravega_spark.values.limits import PREFETCH_CHUNK_BYTES, SWEEP_RETAIN
from pravega_spark.values.units import parse_duration_ms
from tests.harness.page_examples import REPOSITORY

DOCS, PACKAGE = REPOSITORY / "docs", REPOSITORY / "pravega_spark"
CODE = re.compile(r"`([^`\n]+)`")
KINDS = [kind.value for kind in WORKS]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_everything_installs_from_a_checkout_or_a_file_until_an_index_has_the_package() -> None:
    """What errors say is true where the package is installed; two pages say so."""
    kinds = ("*.md", "docs/*.md", "deploy/**/*", "examples/**/*")
    paths = [
        path
        for kind in kinds
        for path in REPOSITORY.glob(kind)
        if path.is_file() and path.suffix != ".pyc"
    ]
    paths.remove(REPOSITORY / "CHANGELOG.md")
    naming = re.compile(r"\bpip install (?!--no-index --find-links )[^\n`]*pravega-spark\b")
    found = {path.name for path in paths if naming.search(path.read_text(errors="replace"))}
    assert found == {"quickstart.md", "troubleshooting.md"}


def test_each_platform_says_how_to_install_what_it_needs_and_what_was_tried() -> None:
    text = page("platforms.md").partition("## What holds for all")[2]
    tables = [part for part in text.split("\n## ") if "| install |" in part]
    assert len(tables) == 8
    for table in tables:
        rows = set(re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE))
        assert {"install", "tried"} <= rows, table
        assert rows & {"credentials", "storage, credentials"}, table


def between(text: str, start: str, end: str) -> str:
    """The text after the first ``start``, up to ``end``."""
    _, found, rest = text.partition(start)
    assert found, start
    return rest.partition(end)[0]


def first_cells(text: str, header: str) -> str:
    """The first column of a table."""
    rows = between(text, header, "\n\n").splitlines()
    return "\n".join(row.split("|")[1] for row in rows if row.startswith("|"))


def metadata_tables() -> set[str]:
    with pytest.raises(InvalidOption) as refused:
        options.parse(options.READ, {"metadata": "?"})
    return set(between(str(refused.value), "one of ", ";").split(", "))


def test_pages_have_every_metadata_table() -> None:
    known = metadata_tables()
    assert "Streams" in known
    named = between(page("spark-reference.md"), "option `metadata` (", ")")
    assert set(CODE.findall(named)) == known
    assert set(CODE.findall(first_cells(page("monitoring.md"), "| `metadata` |"))) == known


def test_page_has_every_option_of_the_old_connector() -> None:
    table = between(page("spark-reference.md"), "options are treated like this:\n\n", "\n\n")
    rows = table.splitlines()[2:]
    refused, ignored = (set(CODE.findall(row.split("|")[1])) for row in rows)
    # The sets are private, since no call lists options that do nothing.
    assert {name.lower() for name in refused} == options._NOT_YET_AVAILABLE
    assert {name.lower() for name in ignored} == set(options._IGNORED)


def test_pages_have_every_kind_of_maintenance() -> None:
    assert sorted(KINDS) == sorted(kind.value for kind in MaintenanceKind)
    assert len(KINDS) == 7  # as the pages write it out
    intro = between(page("maintenance.md"), "# Maintenance\n\nSeven kinds of work", "\n\n")
    assert CODE.findall(intro) == KINDS
    assert first_cells(page("maintenance.md"), "| kind | at a stream |").split() == [
        "---",
        *(f"`{kind}`" for kind in KINDS),
    ]
    entry = between(page("glossary.md"), "| maintenance |", "seven kinds of work")
    assert CODE.findall(entry) == KINDS


def test_kinds_with_a_job_of_their_own_are_named() -> None:
    own = set(KINDS_OF_JOBS) - {PROG}
    named = between(page("maintenance.md"), "are also run by the jobs ", ". They")
    assert set(CODE.findall(named)) == own
    said = between(MaintenanceKind.__doc__ or "", "does all kinds.", "are also")
    assert {word for word in KINDS if word in said.lower()} == own


def known_options(**wrong: object) -> set[str]:
    """The names of options that a message lists for a wrong one."""
    with pytest.raises(InvalidOption) as refused:
        open_store("s3://bucket/root", **wrong)
    listed = re.split(r"; or |\.$", str(refused.value).partition("Use ")[2])[0]
    return set(listed.replace(" and in s3", ",").replace(",,", ",").split(", "))


def test_page_has_every_storage_option_of_s3() -> None:
    table = between(page("storage.md"), "| option | root on | effect |\n", "\n\n")
    rows = [row.split("|") for row in table.splitlines()]
    of_s3 = [row for row in rows if "S3" in row[2]]
    assert {name for row in of_s3 for name in CODE.findall(row[1])} == known_options(nonsense=1)
    for name in ("client_kwargs", "config_kwargs"):
        (effect,) = (row[3] for row in of_s3 if row[1] == f" `{name}` ")
        said = {word for word in CODE.findall(effect) if re.fullmatch("[a-z_0-9]+", word)}
        assert said - {"s3v4"} == known_options(**{name: {"nonsense": 1}})


def test_rule_for_cheaper_storage_is_one_that_s3_takes() -> None:
    """It leaves alone what a log consists of: its commits, state and offers are smaller."""
    text = between(page("storage.md"), "## Cheaper storage", "## Rights on S3")
    rules = json.loads(between(text, "```json\n", "```"))
    model = botocore.session.get_session().get_service_model("s3")
    shape = model.shape_for("BucketLifecycleConfiguration")
    assert not ParamValidator().validate(rules, shape).has_errors()
    (rule,) = rules["Rules"]
    assert rule["Filter"]["And"]["ObjectSizeGreaterThan"] > 2 * PREFETCH_CHUNK_BYTES
    assert rule.keys() == {"ID", "Status", "Filter", "Transitions"}  # nothing expires
    kept_days = parse_duration_ms("retain", SWEEP_RETAIN) // 86_400_000
    assert all(each["Days"] > kept_days for each in rule["Transitions"])
    asked_back = {"GLACIER", "DEEP_ARCHIVE"}
    assert asked_back.isdisjoint(each["StorageClass"] for each in rule["Transitions"])


def picture(of: str) -> list[list[str]]:
    """The names in each line of the picture of the layers: of the package, or of one folder."""
    owner, found = "", dict[str, list[list[str]]]()
    for line in between(page("ARCHITECTURE.md"), " pravega_spark/\n", "```").splitlines():
        *names, _ = re.split(r" {2,}", line.strip().replace("/", ""))
        is_top = line.startswith("   ") and line[3] != " "
        owner = names[0] if is_top else owner
        found.setdefault("" if is_top else owner, []).append(names)
    return found[of]


def layers(contract: str) -> list[list[str]]:
    """The layers of a contract of imports, which names each part."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    found = between(between(project, f'\nid = "{contract}"\n', "\n\n"), "\nlayers = [", "\n]")
    return [re.findall(r"\w+", layer) for layer in found.strip().splitlines()]


@pytest.mark.parametrize(("of", "contract"), [("", "layers"), ("engine", "engine-rooms")])
def test_picture_has_each_layer_in_the_order_of_the_imports(of: str, contract: str) -> None:
    lines = {name: number for number, names in enumerate(picture(of)) for name in names}
    known = layers(contract)
    assert set(lines) == {name for layer in known for name in layer}
    numbers = [sorted(lines[name] for name in layer) for layer in known]
    assert [(upper, lower) for upper, lower in pairwise(numbers) if upper[-1] > lower[0]] == []


def test_picture_has_each_folder_of_spark() -> None:
    shown = {name for names in picture("spark") for name in names}
    assert {path.parent.name for path in (PACKAGE / "spark").glob("*/__init__.py")} <= shown


def folders(of: Path, prefix: str = "") -> set[str]:
    """The folders of the project there; git ignores the others."""
    lines = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = [".git", *(line.strip("/") for line in lines if line and not line.startswith("#"))]
    names = [path.name for path in of.iterdir() if path.is_dir()]
    return {
        f"{prefix}{name}/"
        for name in names
        if not any(fnmatch(name, pattern) for pattern in ignored)
    }


def test_architecture_names_every_folder() -> None:
    named = set(CODE.findall(first_cells(page("ARCHITECTURE.md"), "| folder | what it is for |")))
    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []
    by_their_folders = {"tests/", "examples/"}
    assert folders(REPOSITORY) - named == by_their_folders
    assert folders(REPOSITORY / "tests", "tests/") - named == set()


def test_only_the_page_and_the_rest_api_listen() -> None:
    """docs/security.md says that nothing else opens a port."""
    opens = re.compile(r"\.bind\(|create_server|start_server|HTTPServer|uvicorn\.")
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if opens.search(path.read_text(encoding="utf-8"))
    }
    assert {path for path in found if not path.startswith("serve/")} == set()
    assert found
