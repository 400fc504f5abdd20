"""A keyword that a method does not have: the error names the one that is meant."""

from collections.abc import Callable
from typing import Any

import pytest

import jjq

WRONG: dict[str, tuple[Callable[[jjq.Store, Any], object], str]] = {
    "offset": (lambda store, wrong: store.create_subscriber("t", "s", **wrong), "create_subscriber .* did you mean start?"),
    "ack_time": (lambda store, wrong: store.channel("t", "c", create=True, **wrong), "channel .* did you mean ack_timeout?"),
    "particions": (lambda store, wrong: store.create_topic("n", **wrong), "a topic has no setting .* did you mean 'partitions'?"),
    "exists_ok": (lambda store, wrong: store.create_topic("n", **wrong), "a topic has no setting .* did you mean 'exist_ok'?"),
    "columns": (lambda store, wrong: store.create_topic("n", **wrong), "a topic has no setting .* did you mean 'schema'?"),
    "maxlen": (
        lambda store, wrong: store.create_topic("n", **wrong),
        "a topic has no setting .* did you mean 'retention_bytes' or 'retention_segments'?",
    ),
    "add_column": (lambda store, wrong: store.alter_topic("t", **wrong), "a topic has no setting .* did you mean 'add_columns'?"),
    "schema": (lambda store, wrong: store.alter_topic("t", **wrong), "a topic has no setting .* did you mean 'add_columns'?"),
    "replication_factor": (lambda store, wrong: store.create_topic("n", **wrong), "a topic has no setting .* there are boot_id, "),
    "batch_size": (lambda store, wrong: store.producer(**wrong), "Producer .* did you mean batch_bytes?"),
    "decode": (lambda store, wrong: store.pubsub(**wrong), "PubSub .* there are decode_responses, "),
    "writer": (lambda store, wrong: store.commit([], **wrong), "commit .* did you mean writer_id?"),
    "default_partitions": (lambda store, wrong: store.stage(**wrong), "stage .* did you mean default_partition?"),
    "fields": (lambda store, wrong: store.topic("t").read(**wrong), "read .* did you mean columns?"),
    "colums": (lambda store, wrong: store.topic("t").to_pandas(**wrong), "read .* did you mean columns?"),
    "key": (lambda store, wrong: store.topic("t").push_many([b"x"], **wrong), "push_many .* did you mean keys?"),
    "key_column": (lambda store, wrong: store.topic("t").push_table(None, **wrong), "push_table .* did you mean key?"),
    "content": (lambda store, wrong: store.topic("t").push_file(b"x", **wrong), "push_file .* there are source, value, "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_keyword_that_is_not_there_leads_to_one_that_is(name: str, store: jjq.Store) -> None:
    store.create_topic("t")
    call, says = WRONG[name]
    with pytest.raises((TypeError, jjq.InvalidArgument), match=says.replace("?", r"\?")) as caught:
        call(store, {name: 1})
    assert repr(name) in str(caught.value)
    assert "self" not in str(caught.value)
    assert [each.name for each in store.topics()] == ["t"]
    assert store.topic("t").offsets()[0].end == 0
