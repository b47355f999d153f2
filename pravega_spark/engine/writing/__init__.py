"""The path of events into a stream.

An event of ``EventStreamWriter.write_event`` passes, in this order:

1. ``queue``: it waits, and ``batch`` says how. ``threads`` calls ``WriteQueue.work`` of a queue
   that has events, in a thread that writers share.
2. ``batch``: it is taken out with the events that wait beside it.
3. ``committer``: a batch gets its segments by ``chunks.routing``, and is staged.
4. ``stage``: ``chunks.writer`` encodes a chunk for each segment (``chunks.tiny`` if it is small),
   and ``store.stage`` takes it: it has its name, and is not durable yet.
5. ``group_commit``: one of the process's writers commits for all whose batches are staged. It gives
   ``log.commit`` a function that makes the commit on the newest snapshot.
6. ``append``: that function checks each batch against the snapshot and adds its chunks to the
   commit by ``stream.commit_builder``.
7. ``log.commit``: the commit's file is put if it is absent. ``store.local`` makes the chunks
   durable before it, by ``store.local_files``. The batch's ``futures`` are done.

``encode`` turns what users give into events, ``identity`` tells a repeated batch from a new one,
and ``outcomes`` is what a commit says of each batch.
"""
