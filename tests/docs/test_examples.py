"""The examples of every page run, block by block, as a reader would paste them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark import session
from pravega_spark.maintenance.auto import VARIABLE
from tests.harness import warm_workers
from tests.harness.page_examples import REPOSITORY, Example, PageRun, examples_of, pages

_LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
MUST_RUN = {
    "README.md": 3,
    "docs/backup.md": 5,
    "docs/batch-reads.md": 8,
    "docs/command-line.md": 14,
    "docs/concepts.md": 6,
    "docs/conditional-appends.md": 5,
    "docs/from-delta.md": 2,
    "docs/from-kafka.md": 1,
    "docs/from-pravega.md": 1,
    "docs/byte-streams.md": 4,
    "docs/key-value-tables.md": 16,
    "docs/large-events.md": 5,
    "docs/maintenance.md": 7,
    "docs/monitoring.md": 11,
    "docs/operations.md": 2,
    "docs/query-engines.md": 8,
    "docs/quickstart.md": 13,
    "docs/reader-groups.md": 6,
    "docs/recipes.md": 6,
    "docs/reliability.md": 1,
    "docs/retention.md": 11,
    "docs/scaling.md": 6,
    "docs/security.md": 4,
    "docs/settings.md": 2,
    "docs/shared-state.md": 4,
    "docs/spark.md": 5,
    "docs/storage.md": 1,
    "docs/spark-frames.md": 6,
    "docs/time.md": 8,
    "docs/transactions.md": 10,
    "docs/typed-streams.md": 6,
    "docs/troubleshooting.md": 1,
}
"""The least number of blocks that run: so no page loses its examples."""


def _of(page: str) -> list[Example]:
    return examples_of((REPOSITORY / page).read_text())


def _parameters() -> list[object]:
    found: list[object] = []
    for page in pages():
        try:
            examples = [example for example in _of(page) if example.reason is None]
        except ValueError:  # the page's own test reports it
            examples = [Example(1, "python", "")]
        needs_spark = any(example.needs_spark for example in examples)
        if examples:
            found.append(
                pytest.param(
                    page, marks=[pytest.mark.spark, pytest.mark.extended] if needs_spark else []
                )
            )
    return found


@pytest.fixture(autouse=True)
def real_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the pages as their readers do, whose new roots say that applications maintain them."""
    monkeypatch.delenv(VARIABLE)


@pytest.fixture(scope="module")
def start_spark() -> Callable[[], SparkSession]:
    """Return a function that returns the one session of all pages; most pages need none."""

    def start() -> SparkSession:
        with warm_workers.given():
            found: SparkSession = session(**_LAUNCH)
        found.sparkContext.setLogLevel("OFF")
        return found

    return start


@pytest.mark.medium
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", _parameters())
def test_every_example_of_the_page_runs(
    page: str,
    tmp_path: Path,
    start_spark: Callable[[], SparkSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = [example for example in _of(page) if example.reason is None]
    assert len(examples) >= MUST_RUN.get(page, 0)
    monkeypatch.chdir(tmp_path)
    needs_spark = any(example.needs_spark for example in examples)
    spark = start_spark() if needs_spark else None
    run = PageRun(page, tmp_path, start_spark, monkeypatch)
    try:
        for example in examples:
            run.run(example)
    finally:
        logging.getLogger("pravega_spark").setLevel(logging.NOTSET)
        if spark is not None:
            _clean(spark)


def _clean(spark: SparkSession) -> None:
    """Stop the queries of a page and drop its views: the next page has the same session."""
    for query in spark.streams.active:
        query.stop()
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def test_block_is_run_unless_a_reason_stands_above_it() -> None:
    text = """
```python
a = 1
```

<!-- not run: needs a bucket -->
```sh
pravega-spark reader-group ls
```

<!-- not run:  -->
```sql
SELECT 1
```

```text
output
```
"""
    first, second, third = examples_of(text)
    assert (first.line, first.language, first.code, first.reason) == (2, "python", "a = 1\n", None)
    assert second.reason == "needs a bucket"
    assert third.reason is None


@pytest.mark.parametrize("text", ["```py\n```\n", "```bash\n```\n", "```python\na = 1\n"])
def test_block_that_would_be_overlooked_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        examples_of(text)


@pytest.mark.parametrize("code", ["make nothing\n", "ls\n", "pravega-spark no-such-command\n"])
def test_command_that_fails_or_is_not_the_packages_fails_the_page(
    code: str,
    tmp_path: Path,
    start_spark: Callable[[], SparkSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = PageRun("page.md", tmp_path, start_spark, monkeypatch)
    with pytest.raises((ValueError, AssertionError), match=r"page\.md"):
        run.run(Example(1, "sh", code))
