"""Topics and their schemas: made, found, changed, emptied and deleted, whatever serves the store."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.topics import at_first_use

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])


# --- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_is_found_by_name_listed_and_described(store: jjq.Store) -> None:
    made = store.create_topic(
        "flights", partitions=3, schema=FLIGHTS, retention=dt.timedelta(days=7), compression="zstd"
    )
    store.create_topic("a.plain-one:1")
    assert [topic.name for topic in store.topics()] == ["a.plain-one:1", "flights"]
    found = store.topic("flights")
    assert (found.id, found.partitions, found.schema) == (made.id, 3, FLIGHTS)
    described = found.describe()
    assert described["config"]["retention_us"] == 7 * 86_400_000_000
    assert described["schema"] == {"carrier": "string", "delay": "int32"}
    assert [each["records"] for each in described["partitions"]] == [0, 0, 0]


def test_a_topic_is_made_on_first_use_by_who_pushes_in_the_background_or_makes_a_channel(
    store: jjq.Store, reopen: Callable[[], jjq.Store]
) -> None:
    with store.producer() as producer:
        producer.push("clicks", b"1")
        producer.push("clicks#ephemeral", b"2")
    channel = store.channel("orders", "billing", create=True)
    store.publish("news", b"3")
    assert {topic.name: topic.config.ephemeral for topic in reopen().topics()} == {
        "clicks": False, "clicks#ephemeral": True, "news": True, "orders": False,
    }  # fmt: skip
    store.topic("orders").push(b"4")
    assert [each.record.value for each in channel.receive(timeout=None)] == [b"4"]


@pytest.mark.embedded
def test_a_first_use_meets_the_topic_that_somebody_makes_meanwhile(store: jjq.Store) -> None:
    made = []

    def use(topic: jjq.Topic) -> None:
        made.append(store.create_topic("t", schema=pa.schema([("a", pa.int64())])))
        topic.push({"a": 1})  # to one without a schema it cannot go

    assert at_first_use(store, "t", use).id == made[0].id


def test_a_first_use_that_cannot_be_makes_no_topic(store: jjq.Store) -> None:
    with store.producer() as producer:
        for value, options in (
            ({"a": 1}, {}), (7, {}), (bytes((64 << 20) + 1), {}), (b"", {"key": 7}), (b"", {"timestamp": 1}), (b"", {"partition": 1}),
            (b"", {"headers": 7}),
        ):  # fmt: skip
            with pytest.raises(jjq.InvalidArgument):
                producer.push("orders", value, **options)
    for data in ({"a": 1}, 7):
        with pytest.raises(jjq.InvalidArgument):
            store.publish("orders", data)
    for settings in (
        {"start": "soon"}, {"start": 1}, {"start": {1: 0}}, {"ordered": 7}, {"max_attempts": 0}, {"ack_timeout": "long"},
        {"dead_letter": "orders"}, {"dead_letter": "a/b"}, {"max_in_flight": 0},
    ):  # fmt: skip
        with pytest.raises((jjq.InvalidArgument, jjq.OffsetOutOfRange)):
            store.channel("orders", "billing", create=True, **settings)
    with pytest.raises(jjq.InvalidName):
        store.channel("orders", "a/b", create=True)
    assert store.topics() == []
    with store.producer() as producer:
        producer.push("orders", None, key="k", headers={"h": "1"}, partition=0)
    store.channel("returns", "billing", create=True, start=-3, ordered=True, max_attempts=None)
    assert [(topic.name, topic.offsets()[0].end) for topic in store.topics()] == [("orders", 1), ("returns", 0)]


def test_no_topic_is_made_by_a_name_alone_or_where_that_is_switched_off(reopen: Callable[..., jjq.Store]) -> None:
    with reopen(create_topics=False) as store:
        store.create_topic("flights")
        with store.producer() as producer, pytest.raises(jjq.TopicNotFound, match="did you mean 'flights'"):
            producer.push("flihgts", b"")
        with pytest.raises(jjq.TopicNotFound):
            store.channel("flihgts", "work", create=True)
        with pytest.raises(jjq.TopicNotFound):
            store.publish("flihgts", b"")
    with reopen(create_topics=True) as store:
        for use in (store.topic, store.create_subscriber, lambda name: store.channel(name, "work")):
            with pytest.raises(jjq.TopicNotFound):
                use("flihgts")
        assert [topic.name for topic in store.topics()] == ["flights"]


def test_a_topic_that_is_not_there_is_named_with_the_nearest_one(store: jjq.Store) -> None:
    store.create_topic("flights")
    with pytest.raises(jjq.TopicNotFound, match="did you mean 'flights'"):
        store.topic("flight")


def test_a_name_can_be_taken_once(store: jjq.Store) -> None:
    first = store.create_topic("t")
    with pytest.raises(jjq.TopicExists):
        store.create_topic("t")
    assert store.create_topic("t", exist_ok=True).id == first.id
    assert store.topic("t").partitions == 1


def test_a_duration_needs_a_unit_and_sizes_may_have_one(store: jjq.Store) -> None:
    for name in ("retention", "segment_age"):
        for bare in (7, 7.5, 0):
            with pytest.raises(jjq.InvalidArgument, match=rf"{name} needs a unit: write '{bare} days' or '{bare} s'"):
                store.create_topic("t", **{name: bare})
    topic = store.create_topic("t", retention="7 days", segment_age=dt.timedelta(hours=1), retention_bytes="1.5GB")
    assert topic.config.retention_us == 7 * 86_400_000_000
    assert topic.config.retention_bytes == 3 << 29
    with pytest.raises(jjq.InvalidArgument, match="retention needs a unit"):
        store.alter_topic("t", retention=7)
    with pytest.raises(jjq.InvalidArgument, match="segment_bytes: '64 MX' is no size; write 4096"):
        store.alter_topic("t", segment_bytes="64 MX")
    with pytest.raises(jjq.InvalidArgument, match=r"retention_bytes: '9+\.\.\. .* is more than any file has"):
        store.alter_topic("t", retention_bytes="9" * 400)
    assert store.alter_topic("t", segment_bytes="64 KiB").config.segment_bytes == 65_536


def test_a_topic_that_exists_is_used_if_it_is_as_asked_for(store: jjq.Store) -> None:
    schema = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
    first = store.create_topic("t", partitions=2, schema=schema, retention="7 days", sync="none")
    for given in (
        {}, {"partitions": 2}, {"schema": schema}, {"retention": "168 hours"}, {"sync": "none"}, {"segment_rows": None},
        {"schema": pa.schema([("carrier", pa.large_string()), ("delay", pa.int32())])},
    ):  # fmt: skip
        assert store.create_topic("t", exist_ok=True, **given).id == first.id  # type: ignore[arg-type]
    store.create_topic("e#ephemeral")
    assert store.create_topic("e#ephemeral", max_records=10_000, exist_ok=True).config.ephemeral
    store.alter_topic("t", add_columns=pa.schema([("gate", pa.string())]))
    assert store.create_topic("t", schema=schema, exist_ok=True).schema.names == ["carrier", "delay", "gate"]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"partitions": 1}, jjq.InvalidArgument, r"partitions: 1 were asked for, and topic 't' has 2; leave it out"),
        ({"partitions": 4}, jjq.InvalidArgument, r"4 were asked .* has 2; .*, or add some with alter_topic"),
        (
            {"sync": "always"},
            jjq.InvalidArgument,
            r"sync: 'always' was asked for, and topic 't' has 'none'; .*alter_topic",
        ),
        (
            {"retention": "1 day"},
            jjq.InvalidArgument,
            r"retention: 1 day was .* topic 't' has 7 days;",
        ),
        ({"retention": None}, jjq.InvalidArgument, r"retention: none was asked for"),
        (
            {"schema": pa.schema([("n", pa.int64())])},
            jjq.SchemaMismatch,
            r"n int64 was asked .* 't' has n int32, s string",
        ),
        ({"schema": pa.schema([("s", pa.string())])}, jjq.SchemaMismatch, r"s string was asked for"),
        (
            {"schema": pa.schema([("n", pa.int32()), ("s", pa.string()), ("more", pa.int8())])},
            jjq.SchemaMismatch,
            r"Columns are added with alter_topic\(add_columns=",
        ),
    ],
)
def test_a_topic_that_is_not_as_asked_for_is_not_given_for_it(
    store: jjq.Store, given: dict[str, Any], error: type[jjq.JjqError], says: str
) -> None:
    schema = pa.schema([("n", pa.int32()), ("s", pa.string())])
    made = store.create_topic("t", partitions=2, schema=schema, retention="7 days", sync="none")
    with pytest.raises(error, match=says):
        store.create_topic("t", exist_ok=True, **given)
    assert store.topic("t").row == made.row
    plain = store.create_topic("plain")
    with pytest.raises(jjq.SchemaMismatch, match="topic 'plain' has none"):
        store.create_topic(plain.name, schema=schema, exist_ok=True)


def test_whoever_meets_the_end_of_a_topic_is_told_its_name(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("flights")
    topic.push(b"a")
    subscriber = store.create_subscriber("flights", "s")
    channel = store.channel("flights", "c", create=True)
    slices = topic.plan(0, 0, 1)
    store.delete_topic("flights")
    uses: list[Callable[[], Any]] = [
        lambda: topic.push(b"b"), lambda: topic.push(b"b", key=b"k"), lambda: topic.push_many([b"b"]),
        lambda: topic.push_table(pa.table({"value": [b"b"]})), topic.offsets, topic.describe, topic.read, topic.segments,
        lambda: topic.push_table(pa.table({"value": [b"b"]}), writer_id="w", batch_id=1), topic.refresh, topic.empty,
        topic.pause, lambda: topic.paused, subscriber.pop, subscriber.poll, channel.receive, channel.counts,
        lambda: list(store.read_slices(slices)), lambda: topic.plan(0, 0, 1), lambda: topic.offset_for_timestamp(0),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(jjq.TopicDeleted, match="topic 'flights' was deleted"):
            use()
    with jjq.open(directory) as other, pytest.raises(jjq.TopicDeleted, match="topic 'flights' was deleted"):
        list(other.read_slices(slices))


def test_a_topic_made_again_is_another_topic(store: jjq.Store) -> None:
    old = store.create_topic("t")
    old.push(b"old")
    store.delete_topic("t")
    with pytest.raises(jjq.TopicDeleted):
        old.push(b"late")
    with pytest.raises(jjq.TopicDeleted):
        old.offsets()
    new = store.create_topic("t")
    assert new.id != old.id
    assert new.push(b"new").offset == 0
    assert new.read().read_all()["value"].to_pylist() == [b"new"]
    with pytest.raises(jjq.TopicDeleted):
        old.push(b"later still")


def test_emptying_keeps_counting(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many([b"a", b"b"], partition=1)
    topic.empty()
    assert [(o.start, o.end) for o in topic.offsets()] == [(0, 0), (2, 2)]
    assert topic.push(b"c", partition=1).offset == 2
    assert topic.read().read_all()["value"].to_pylist() == [b"c"]
    with pytest.raises(jjq.DataLoss) as caught:
        topic.plan(1, 0, 3)
    assert (caught.value.asked, caught.value.earliest, caught.value.lost) == (0, 2, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sync": "often"}, "sync must be one of"),
        ({"partitions": 0}, "partitions must be"),
        ({"partitions": 2000}, "partitions must be"),
        ({"segment_bytes": 10}, "segment_bytes must be"),
        ({"retention": "soon"}, "retention must be a duration"),
        ({"retention": dt.timedelta(0)}, "longer than nothing"),
        ({"compression": "gzip"}, "compression must be one of"),
        ({"segment_byte": 1 << 20}, "did you mean 'segment_bytes'"),
        ({"schema": {"a": "int"}}, "schema must be a pyarrow.Schema"),
        ({"partition": 3}, "no setting 'partition'; did you mean 'partitions'"),
    ],
)
def test_bad_settings_say_what_can_be_set(store: jjq.Store, settings: dict[str, object], message: str) -> None:
    with pytest.raises(jjq.InvalidArgument, match=message):
        store.create_topic("t", **settings)  # type: ignore[arg-type]
    assert store.topics() == []


# --- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.map_(pa.string(), pa.large_string()), pa.map_(pa.string(), pa.string())),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ],
)
def test_types_that_differ_only_in_encoding_become_the_plain_one(
    store: jjq.Store, kind: pa.DataType, stored: pa.DataType
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("c", kind)]))
    assert topic.schema is not None
    assert topic.schema.field("c").type == stored


@pytest.mark.parametrize("kind", [pa.uint32(), pa.float16(), pa.time64("us"), pa.null(), pa.decimal256(50, 2)])
def test_types_that_spark_cannot_read_are_refused(store: jjq.Store, kind: pa.DataType) -> None:
    with pytest.raises(jjq.SchemaMismatch, match="Spark cannot read"):
        store.create_topic("t", schema=pa.schema([("c", kind)]))


@pytest.mark.parametrize("names", [["_a"], [""], ["a", "A"], ["a", "a"]])
def test_column_names_that_cannot_be_told_apart_are_refused(store: jjq.Store, names: list[str]) -> None:
    with pytest.raises(jjq.SchemaMismatch):
        store.create_topic("t", schema=pa.schema([(name, pa.int64()) for name in names]))


def test_columns_are_added_without_a_restart(store: jjq.Store, reopen: Callable[..., jjq.Store]) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    topic.push({"carrier": "AA", "delay": 1})
    with reopen() as other:
        stale = other.topic("t")
        stale.push({"carrier": "UA"})
        store.alter_topic("t", add_columns=pa.schema([("gate", pa.string())]))
        assert stale.push({"carrier": "DL", "gate": "B4"}).offset == 2
        assert stale.push({"delay": 9}).offset == 3
    topic.refresh()
    assert topic.read().read_all().to_pylist() == [
        {"carrier": "AA", "delay": 1, "gate": None},
        {"carrier": "UA", "delay": None, "gate": None},
        {"carrier": "DL", "delay": None, "gate": "B4"},
        {"carrier": None, "delay": 9, "gate": None},
    ]


def test_a_handle_may_learn_of_a_column_while_its_rows_are_being_made_columns(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)

    class Row(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            if len(FLIGHTS) == len(topic.schema or ()):  # as by another thread
                store.alter_topic("t", add_columns=pa.schema([("gate", pa.string())]))
                topic.refresh()
            return super().get(name, default)

    topic.push(Row(carrier="AA", delay=1))
    assert topic.read().read_all().to_pylist() == [{"carrier": "AA", "delay": 1, "gate": None}]


@pytest.mark.parametrize("change", [[("delay", pa.string())], [("DELAY", pa.int32())], [("_x", pa.int32())]])
def test_a_change_that_is_no_addition_is_refused(store: jjq.Store, change: list[tuple[str, pa.DataType]]) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    with pytest.raises(jjq.SchemaMismatch):
        store.alter_topic("t", add_columns=pa.schema(change))
    topic.refresh()
    assert (topic.schema, topic.schema_version) == (FLIGHTS, 1)


@pytest.mark.embedded
@pytest.mark.parametrize("first_use", [False, True])
def test_a_name_that_was_taken_and_let_go_meanwhile_is_taken(
    first_use: bool, store: jjq.Store, reopen: Callable[..., jjq.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = reopen()
    make_dirs, remove_dir = files.make_dirs, files.remove_dir

    def taken(path: Path, within: Path | None = None) -> None:
        monkeypatch.setattr(files, "make_dirs", make_dirs)
        monkeypatch.setattr(files, "remove_dir", let_go)
        other.create_topic("t")
        make_dirs(path, within)

    def let_go(path: Path) -> None:  # as the one that came too late removes its own
        monkeypatch.setattr(files, "remove_dir", remove_dir)
        other.delete_topic("t")
        remove_dir(path)

    monkeypatch.setattr(files, "make_dirs", taken)
    made = at_first_use(store, "t", lambda _: None) if first_use else store.create_topic("t", exist_ok=True)
    assert files.remove_dir is remove_dir
    assert store.topic("t").id == made.id
