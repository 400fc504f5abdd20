"""What the catalog remembers of exactly-once writers: the last batches, and where they went."""

from __future__ import annotations

from jjq.catalog.rows import Positions, Statements, pack_positions, unpack_positions
from jjq.errors import WriterConflict

KEPT_BATCHES = 100  # batch ids a writer remembers with their positions


def known_batch(tx: Statements, writer_id: str, batch_id: int, query_id: str | None) -> Positions | None:
    """The positions of a batch that the writer has committed; raises WriterConflict for one that cannot follow."""
    row = tx.row("writer", id=writer_id)
    if row is None:
        return None
    _, known_query, last_batch, _ = row
    advice = f"; if that is meant, `jjq writer reset {writer_id}` forgets what this writer has committed"
    if known_query != query_id and batch_id <= last_batch:
        raise WriterConflict(
            f"writer {writer_id!r} has committed up to batch {last_batch} for another query ({known_query}), so batch "
            f"{batch_id} of this one ({query_id}) may be old or new" + advice,
            writer=writer_id, batch=batch_id, last=last_batch,
        )  # fmt: skip
    batch = tx.row("writer_batch", writer_id=writer_id, batch_id=batch_id)
    if batch is not None:
        return unpack_positions(batch[0])
    if batch_id <= last_batch:
        raise WriterConflict(
            f"writer {writer_id!r} has committed up to batch {last_batch} and does not know batch {batch_id}" + advice,
            writer=writer_id, batch=batch_id, last=last_batch,
        )  # fmt: skip
    return None


def add_batch(
    tx: Statements, writer: tuple[str, int, str | None], positions: Positions, run_id: str | None, now: int
) -> None:  # fmt: skip
    """The batch as the writer's last one; the oldest it remembers goes."""
    writer_id, batch_id, query_id = writer
    tx.run("set_writer", id=writer_id, query_id=query_id, last_batch=batch_id, updated_at=now)
    tx.run(
        "add_writer_batch", writer_id=writer_id, batch_id=batch_id, positions=pack_positions(positions), run=run_id
    )  # fmt: skip
    tx.run("trim_writer_batches", writer_id=writer_id, up_to=batch_id - KEPT_BATCHES)
