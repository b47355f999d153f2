"""Which batch it is, in real Spark: rollbacks, copies, two frames of a batch, changed sinks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pravega_spark.manager import StreamManager
from tests.spark.conftest import finish

Write = Callable[[DataFrame, int], None]


class Lines:
    """A query of text files; each run takes what was added."""

    def __init__(self, spark: SparkSession, root: str, folder: Path) -> None:
        self.root, self.input, self.checkpoint = root, folder / "in", folder / "checkpoint"
        self.input.mkdir()
        self.frame = spark.readStream.text(str(self.input)).withColumnRenamed("value", "event")

    def add(self, name: str, *lines: str) -> None:
        (self.input / name).write_text("\n".join(lines))

    def run(self, checkpoint: Path | None = None, **options: str) -> None:
        self._finish(
            self.frame.writeStream.format("pravega")
            .option("root", self.root)
            .option("stream", "s/a")
            .options(**options),
            checkpoint,
        )

    def for_each(self, write: Write) -> None:
        self._finish(self.frame.writeStream.foreachBatch(write))

    def _finish(self, writer: DataStreamWriter, checkpoint: Path | None = None) -> None:
        at = str(checkpoint or self.checkpoint)
        finish(writer.option("checkpointLocation", at).trigger(availableNow=True).start())

    def forget(self, number: int) -> None:
        """Go back one batch, with the files that it had."""
        for name in (f"offsets/{number}", f"commits/{number}", f"sources/0/{number}"):
            file = self.checkpoint / name
            file.unlink()
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)

    def events(self, name: str = "s/a") -> list[str]:
        return sorted(event.data.decode() for event in StreamManager(self.root).read(name))


@pytest.fixture
def lines(spark: SparkSession, root: str, tmp_path: Path) -> Lines:
    found = Lines(spark, root, tmp_path)
    found.add("1", "a", "b")
    return found


@pytest.mark.versions
def test_rolled_back_batch_with_other_files_is_refused_and_the_same_ones_are_skipped(
    lines: Lines,
) -> None:
    lines.run()
    lines.add("2", "c")
    lines.run()
    (lines.checkpoint / "commits/1").unlink()
    (lines.checkpoint / "commits/.1.crc").unlink(missing_ok=True)
    lines.run()
    lines.forget(1)
    lines.add("3", "d")
    with pytest.raises(PySparkException, match="its sources end elsewhere"):
        lines.run()
    assert lines.events() == ["a", "b", "c"]


def test_copied_checkpoint_is_refused_once_its_original_went_on(lines: Lines) -> None:
    lines.run()
    copy = Path(shutil.copytree(lines.checkpoint, lines.checkpoint.with_name("copy")))
    lines.add("2", "c")
    lines.run()
    lines.add("3", "d")
    with pytest.raises(PySparkException, match="BatchConflict"):
        lines.run(copy)
    lines.run()
    assert lines.events() == ["a", "b", "c", "d"]


@pytest.mark.versions
def test_two_frames_of_a_batch_need_ids_of_their_own(lines: Lines) -> None:
    lines.add("1", *"abcd")

    def parts(*ids: str) -> Write:
        def write(batch: DataFrame, number: int) -> None:
            for which, name in enumerate(ids):
                part = batch.where(f"ascii(event) % 2 = {which}")
                options = {"root": lines.root, "txnAppId": name, "txnVersion": str(number)}
                part.write.format("pravega").mode("append").options(**options).save("s/a")

        return write

    with pytest.raises(PySparkException, match=r"with other rows .*app/good"):
        lines.for_each(parts("app", "app"))
    assert lines.events() == ["b", "d"]
    lines.for_each(parts("app", "app/odd"))
    assert lines.events() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("way", ["group", "inherits", "names checkpoint"])
def test_two_frames_of_a_batch_are_known_by_its_execution(
    spark: SparkSession, lines: Lines, way: str
) -> None:
    """With a job group set between them, or in threads; and the batch runs again."""
    context = spark.sparkContext

    def save(frame: DataFrame, number: int) -> None:
        spark.createDataFrame([], "event string")  # makes the session active in a thread
        options = {"root": lines.root, "txnAppId": "app", "txnVersion": str(number)}
        if way == "names checkpoint":
            options["checkpointLocation"] = str(lines.checkpoint)
        frame.write.format("pravega").mode("append").options(**options).save("s/a")

    def write_both(batch: DataFrame, number: int) -> None:
        for which in ("a", "b"):
            part = batch.where(f"event = '{which}'")
            if way == "group":
                context.setJobGroup("counting", "x")
                save(part, number)
                context.setJobGroup(f"counting {which}", "x")
                continue
            target = inheritable_thread_target(spark)(save) if way == "inherits" else save
            with ThreadPoolExecutor(1) as pool:
                pool.submit(target, part, number).result()

    def write_all(batch: DataFrame, number: int) -> None:
        context.setJobGroup("counting", "x")
        save(batch, number)

    with pytest.raises(PySparkException, match=r"with other rows .*app/good"):
        lines.for_each(write_both)
    if way != "names checkpoint":
        lines.for_each(write_all)
    assert lines.events() == ["a"]


def test_batch_that_was_not_acknowledged_goes_to_the_streams_that_it_had(lines: Lines) -> None:
    def run(stream: str, where: str = "true", **options: str) -> None:
        routed = lines.frame.where(where).selectExpr("event", f"{stream} stream")
        writer = routed.writeStream.format("pravega").option("root", lines.root)
        lines._finish(writer.options(**options))

    by_row = "if(event < 'b', 's/a', 's/b')"
    run(by_row)
    lines.add("2", "c", "d")
    run(by_row)
    for name in ("1", ".1.crc"):
        (lines.checkpoint / "commits" / name).unlink(missing_ok=True)
    with pytest.raises(PySparkException, match=r"is in s/b, and no record .* acceptReplay=1"):
        run("'s/a'")
    run(by_row)
    lines.add("3", "e")
    run(by_row, where="false")  # without rows
    assert (lines.events("s/a"), lines.events("s/b")) == (["a"], ["b", "c", "d"])


def test_restored_stream_takes_a_later_batch_by_the_option(lines: Lines) -> None:
    lines.run()
    copy = lines.root + "-copy"
    shutil.copytree(lines.root, copy)
    lines.add("2", "c")
    lines.run()
    lines.add("3", "d")
    assert not StreamManager(copy).restore().failed
    life = StreamManager(copy).stream_info("s/a").life
    lines.root = copy
    with pytest.raises(PySparkException, match=f"restoredLives={life}"):
        lines.run()
    lines.run(restoredLives=str(life))
    assert lines.events() == ["a", "b", "d"]


@pytest.mark.parametrize("way", ["sink", "foreachBatch", "thread"])
def test_root_that_is_away_for_one_run_takes_no_batch_and_lacks_none(
    lines: Lines, tmp_path: Path, way: str
) -> None:
    """As a disk that is not mounted: its folder is there and empty."""
    root, other = tmp_path / "disk", tmp_path / "unmounted"
    lines.root = str(root)
    root.mkdir()

    def save(batch: DataFrame, _: int) -> None:
        batch.write.format("pravega").mode("append").option("root", lines.root).save("s/a")

    def save_in_thread(batch: DataFrame, number: int) -> None:
        def work() -> None:
            batch.sparkSession.createDataFrame([], "event string")  # makes the session active here
            write = batch.write.format("pravega").mode("append").options(root=lines.root)
            write.option("checkpointLocation", str(lines.checkpoint)).save("s/a")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    def run() -> None:
        if way == "sink":
            lines.run()
        else:
            lines.for_each(save_in_thread if way == "thread" else save)

    run()
    lines.add("2", "c")
    root.rename(other)
    root.mkdir()
    with pytest.raises(PySparkException, match=r"RootChanged: root .* this is batch 1 of query"):
        run()
    assert list(root.iterdir()) == []
    root.rmdir()
    other.rename(root)
    run()
    lines.add("3", "d")
    run()
    assert lines.events() == ["a", "b", "c", "d"]


def test_frame_without_rows_creates_its_stream_in_a_new_root(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([], "event string")
    frame.write.format("pravega").mode("append").option("root", str(tmp_path)).save("s/a")
    assert StreamManager(tmp_path).stream_exists("s/a")


def test_error_of_a_querys_plan_is_told_as_it_is(lines: Lines) -> None:
    with pytest.raises(
        PySparkException, match="InvalidOption: option routingKey names 'x'"
    ) as found:
        lines.run(routingKey="x")
    assert "PicklingError" not in str(found.value)


def test_job_group_is_a_run_of_its_application(spark: SparkSession, root: str) -> None:
    def save(text: str) -> None:
        options = {"root": root, "txnAppId": "app", "txnVersion": "1"}
        frame = spark.createDataFrame([(text,)], "event string")
        frame.write.format("pravega").mode("append").options(**options).save("s/a")

    spark.sparkContext.setJobGroup("nightly", "nightly")
    try:
        save("a")
        found = r"from job group nightly of application [0-9a-f-]{36}, and this write"
        with pytest.raises(PySparkException, match=found):
            save("b")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    save("b")
    assert [event.data for event in StreamManager(root).read("s/a")] == [b"a"]
