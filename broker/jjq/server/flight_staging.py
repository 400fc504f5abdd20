"""The actions of the Flight front on writers, and on files that they stage and commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from jjq.errors import InvalidArgument, StoreError
from jjq.model import StagedFile
from jjq.server.flight_calls import Call, action
from jjq.server.guard import NEEDS
from jjq.server.rights import check_may_write_as
from jjq.staging import Stage
from jjq.values import shown


@action
def writers(call: Call) -> list[Any]:
    call.may("writer.list", None)
    return [[each.id, each.query_id, each.last_batch, each.updated_at] for each in call.store.writers()]


@action
def reset_writer(call: Call, writer_id: Any) -> bool:
    call.may("writer.reset", None)
    return call.store.reset_writer(writer_id)


class StageHandle:
    """A stage that is filled by one client. A write that comes again, as its connection broke, goes on where it broke off."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.taken: set[int] = set()  # the numbers of the writes that it took as a whole
        self.finished = False
        self._batches: dict[int, int] = {}  # and of each how many batches
        self._mutex = threading.Lock()

    def once(self, number: int, index: int, write: Callable[[], object]) -> None:
        """Does `write`, of the batch of that index in a write of that number, unless it was done."""
        with self._mutex:  # who was cut off may still be at it
            if self._batches.get(number, 0) == index:
                write()
                self._batches[number] = index + 1

    def finish(self) -> list[StagedFile]:
        with self._mutex:
            files = self.stage.finish()
            self.finished = True
        return files

    def close(self) -> None:
        # Not amid a write, as of a client that was interrupted: a file that is closed under it may be another one by then.
        with self._mutex:
            if not self.finished:
                self.stage.abandon()


def stage_of(call: Call, handle: int, default_partition: Any = 0, owner: Any = None) -> StageHandle:
    """The stage of that handle, begun at its first use."""
    wanted: Any = tuple(owner) if isinstance(owner, list) else owner  # the stage looks whether it is one
    return call.own_session().handle(
        handle, StageHandle, lambda: StageHandle(call.store.stage(default_partition=default_partition, owner=wanted))
    )


@action
def stage_finish(call: Call, handle: int, writes: int) -> list[str]:
    """The files of a stage, as JSON each, that took so many writes: had it fewer, it would be one that was begun anew."""
    found = stage_of(call, handle)
    if len(found.taken) != writes:
        raise StoreError(
            "the broker was started anew while this stage was written, and what was written before is gone; write it again"
        )
    files = found.finish()
    call.served.remember(files)
    call.own_session().close_handle(handle)
    return [each.to_json() for each in files]


@action
def commit(
    call: Call, staged: Sequence[str], writer_id: Any = None, batch_id: Any = None, query_id: Any = None,
    run_id: Any = None, rows_may_differ: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Makes staged files visible in one transaction, once for a writer and its batch."""
    files = _staged(call, staged)
    if not files:  # a batch of no rows is one too
        call.caller.may_somewhere(NEEDS["commit"])
    check_may_write_as(call.store, call.caller, writer_id)
    for each in files:
        call.served.check_staged(each)
    done = call.store.commit(files, writer_id, batch_id, query_id, run_id=run_id, rows_may_differ=rows_may_differ)
    return {
        "positions": [[name, [[p, *span] for p, span in each.items()]] for name, each in done.positions.items()],
        "duplicate": done.duplicate, "transaction": done.transaction,
    }  # fmt: skip


@action
def discard(call: Call, staged: Sequence[str]) -> None:
    call.store.discard(_staged(call, staged))


def _staged(call: Call, staged: Sequence[str]) -> list[StagedFile]:
    """Files as a client names them: of topics that it may write, and of partitions that are there."""
    if not isinstance(staged, (list, tuple)):
        raise InvalidArgument("staged is a list of files, each as to_json writes it")
    files = [StagedFile.from_json(each) for each in staged]
    for each in files:
        topic = call.topic("commit", each.topic_id)
        topic.check_partition(each.partition)
        if topic.name != each.topic:
            raise InvalidArgument(f"the file {each.uuid} was staged for topic {topic.name!r}, not {shown(each.topic)}")
    return files
