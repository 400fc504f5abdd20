"""The options of format("jjq") as values: what is accepted, and that every refusal says what to write."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jjq.errors import InvalidArgument
from pyspark_jjq import options
from pyspark_jjq.edges import ByTopic, Edge, Instant, TimesByTopic
from pyspark_jjq.options import parse_sink, parse_source, tell_ignored

BASE = {"path": "/data/jjq", "subscribe": "flights"}


def source(**more: str) -> options.SourceOptions:
    return parse_source(BASE | more)


def test_names_are_read_in_any_case_and_blanks_around_values_do_not_count() -> None:
    found = parse_source(
        {"PATH": "/data/jjq", "Subscribe": " a , b ", "FAILONDATALOSS": "False", "startingOffsets": "Earliest "}
    )
    assert found.choice.names == ("a", "b")
    assert found.fail_on_data_loss is False
    assert found.starting == Edge("earliest")


def test_the_defaults_are_those_of_the_table() -> None:
    found = source()
    assert (found.starting, found.ending, found.fail_on_data_loss) == (None, None, True)
    assert (found.max_offsets_per_trigger, found.columns, found.metadata, found.include_headers) == (
        None,
        None,
        (),
        False,
    )


@pytest.mark.parametrize("path", ["file:///data/jjq", "file:/data/jjq", "/data/jjq", "file://localhost/data/jjq"])
def test_a_file_url_is_a_path(path: str) -> None:
    assert parse_source(BASE | {"path": path}).path == "/data/jjq"


def test_a_file_url_may_be_written_as_urls_are(tmp_path: Path) -> None:
    for name in ("my 100% store", "é"):
        assert parse_source(BASE | {"path": (tmp_path / name).as_uri()}).path == str(tmp_path / name)
    for name in ("a%20b", "100%"):  # what is there is named as it is
        (tmp_path / name).mkdir()
        assert parse_source(BASE | {"path": f"file:{tmp_path}/{name}"}).path == str(tmp_path / name)
    assert parse_source(BASE | {"path": "/data/a%20b"}).path == "/data/a%20b"  # no URL


def test_a_file_url_of_another_machine_is_refused() -> None:
    for path in ("file://host/data/jjq", "file://data/jjq"):
        with pytest.raises(InvalidArgument, match="file:///data/jjq with three slashes"):
            parse_sink({"path": path, "topic": "t"})


def test_topic_is_short_for_subscribe_and_both_together_are_refused() -> None:
    assert parse_source({"path": "p", "topic": "flights"}).choice.names == ("flights",)
    with pytest.raises(InvalidArgument, match="give one of them"):
        source(topic="weather")


def test_no_topic_and_no_path_say_what_to_write() -> None:
    with pytest.raises(InvalidArgument, match=r'write \.option\("subscribe"'):
        parse_source({"path": "p"})
    with pytest.raises(InvalidArgument, match=r'write \.option\("path", "/data/jjq"\), the directory'):
        parse_source({"subscribe": "flights"})
    with pytest.raises(InvalidArgument, match=r"instead of kafka\.bootstrap\.servers"):
        parse_source({"subscribe": "flights", "kafka.bootstrap.servers": "host:9092"})


def test_what_only_kafka_needs_is_ignored_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_warned", set())
    kafka = BASE | {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL", "fetchOffset.numRetries": "3"}
    with caplog.at_level(logging.WARNING, logger="jjq.spark"):
        for _ in range(2):
            tell_ignored(parse_source(kafka).ignored)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "ignored, since there are no Kafka clients here: "
            "fetchOffset.numRetries, kafka.bootstrap.servers, kafka.security.protocol"
        )
    ]


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(InvalidArgument, match=r"'startingOffset' .* did you mean startingOffsets\?"):
        source(startingOffset="latest")
    with pytest.raises(
        InvalidArgument,
        match="there are: path, broker, token, tlsCa, tlsCert, tlsKey, retryFor, subscribe, topic, subscribePattern, assign, startingOffsets",
    ):
        source(zzz="1")


def test_an_option_of_the_other_side_says_so() -> None:
    with pytest.raises(InvalidArgument, match="keyColumn is an option for a write"):
        source(keyColumn="carrier")
    with pytest.raises(InvalidArgument, match="startingOffsets is an option for a read"):
        parse_sink({"path": "p", "topic": "t", "startingOffsets": "latest"})


def test_several_paths_and_an_empty_broker_say_what_to_write() -> None:
    with pytest.raises(InvalidArgument, match="a read is of one store; read each as a DataFrame of its own"):
        parse_source({"paths": '["a","b"]', "topic": "t"})  # as .load(["a", "b"]) gives them
    for given in ({"path": "p"}, {}):
        with pytest.raises(InvalidArgument, match="broker is empty; write jjq://host:port, or remove it"):
            parse_source(given | {"broker": "", "topic": "t"})


def test_what_spark_passes_along_is_no_unknown_option() -> None:
    found = parse_sink({"path": "p", "topic": "t", "checkpointlocation": "c", "queryname": "q"})
    assert found.topic == "t"


@pytest.mark.parametrize("value", ["0", "-1", "ten", "1.5", "", str(2**63), "１"])
def test_limits_are_positive_java_longs(value: str) -> None:
    with pytest.raises(InvalidArgument, match="maxOffsetsPerTrigger is a whole number from 1 to 9223372036854775807"):
        source(maxOffsetsPerTrigger=value)


def test_the_largest_limit_is_accepted() -> None:
    assert source(maxOffsetsPerTrigger=str(2**63 - 1)).max_offsets_per_trigger == 2**63 - 1


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_a_truth_value_is_true_or_false(value: str) -> None:
    with pytest.raises(InvalidArgument, match="failOnDataLoss is true or false"):
        source(failOnDataLoss=value)


def test_lists_of_names_have_no_empty_and_no_repeated_ones() -> None:
    assert source(columns="carrier, delay").columns == ("carrier", "delay")
    with pytest.raises(InvalidArgument, match="without empty ones"):
        source(columns="carrier,,delay")
    with pytest.raises(InvalidArgument, match="twice"):
        source(columns="carrier,carrier")


def test_metadata_names_the_nearest_column() -> None:
    assert source(metadata="_offset,_key").metadata == ("_offset", "_key")
    with pytest.raises(InvalidArgument, match=r"'offset' is no metadata column; did you mean _offset\?"):
        source(metadata="offset")


# --- offsets and times


def test_offsets_by_partition_and_edges_by_topic() -> None:
    found = parse_source(
        {"path": "p", "subscribe": "a,b", "startingOffsets": '{"a":{"0":23,"1":-1,"2":-2},"b":"earliest"}'}
    )
    assert found.starting == ByTopic({"a": {0: 23, 1: -1, 2: -2}, "b": Edge("earliest")})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("soonest", "earliest, latest or JSON such as"),
        ('{"flights":', "earliest, latest or JSON such as"),
        ("[1]", "earliest, latest or JSON such as"),
        ("23", "earliest, latest or JSON such as"),
        ('{"flights":23}', "topic 'flights' has 23; write it as in"),
        ('{"flights":"soonest"}', "topic 'flights' has \"soonest\"; write it as in"),
        ('{"flights":{"0":-3}}', "-1 for latest or -2 for earliest, not -3"),
        ('{"flights":{"0":1.0}}', "not 1.0"),
        ('{"flights":{"0":true}}', "not true"),
        ('{"flights":{"0":9223372036854775808}}', "not 9223372036854775808"),
        ('{"flights":{"zero":1}}', "a partition is a number from 0"),
        ('{"flights":{"-1":1}}', "a partition is a number from 0"),
        ('{"flights":{"0":1,"0":2}}', "the name '0' stands there twice"),
        ('{"flihgts":{"0":1}}', "names topic 'flihgts', which is not read; did you mean flights?"),
        ("{}", "must name every topic that is read; missing: flights"),
    ],
)
def test_offset_json_that_cannot_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        source(startingOffsets=text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("startingOffsets")


def test_an_end_is_never_earliest() -> None:
    for text in ("earliest", '{"flights":"earliest"}', '{"flights":{"0":-2}}'):
        with pytest.raises(InvalidArgument, match="endingOffsets cannot be earliest"):
            source(endingOffsets=text)
    assert source(endingOffsets='{"flights":{"0":-1}}').ending == ByTopic({"flights": {0: -1}})


def test_a_time_for_all_beats_times_by_partition_which_beat_offsets() -> None:
    every = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"flights":{"0":1357034400000}}',
        "startingTimestamp": "2013-01-01T10:00:00Z",
    }
    assert source(**every).starting == Instant("2013-01-01T10:00:00Z")
    del every["startingTimestamp"]
    assert source(**every).starting == TimesByTopic({"flights": {0: 1357034400000000}})
    del every["startingOffsetsByTimestamp"]
    assert source(**every).starting == Edge("earliest")


@pytest.mark.parametrize("text", ["1357034400000", "2013-01-01T10:00:00Z", "2013-01-01T11:00:00+01:00"])
def test_one_instant_in_three_spellings(text: str) -> None:
    found = source(startingTimestamp=text).starting
    assert isinstance(found, Instant)
    assert found.at_us() == 1357034400000000


def test_a_relative_time_lies_before_now() -> None:
    now, earlier = Instant("-0 s").at_us(), Instant("-10 minutes").at_us()
    assert earlier < now
    assert Instant("0").at_us() == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1357034400", "seconds were meant?"),
        ("1357034400000000", "microseconds or nanoseconds were meant?"),
        ("-5", "not plausible as milliseconds"),
        ("2013-01-01T10:00:00", "has no time zone"),
        ("2013-01-01", "has no time zone"),
        ("2013-13-01T10:00:00Z", "is not an ISO-8601 time"),
        ("-10 fortnights", "unknown unit"),
        ("yesterday", "or relative such as '-10 minutes', not 'yesterday'"),
        ("", "or relative such as"),
    ],
)
def test_times_that_cannot_be_meant_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        source(startingTimestamp=text)
    assert says in str(caught.value)


def test_times_by_partition_are_numbers() -> None:
    with pytest.raises(InvalidArgument, match="takes epoch milliseconds as numbers"):
        source(startingOffsetsByTimestamp='{"flights":{"0":"2013-01-01T10:00:00Z"}}')
    with pytest.raises(InvalidArgument, match="error or latest"):
        source(startingOffsetsByTimestampStrategy="earliest")


# --- the sink


def test_the_sink_takes_its_own_options() -> None:
    found = parse_sink(
        {
            "path": "p",
            "topic": "t",
            "createTopic": "false",
            "partitions": "4",
            "keyColumn": "carrier",
            "writerId": "w",
            "batchId": "0",
        }
    )
    assert found == options.SinkOptions(
        path="p", topic="t", create_topic=False, partitions=4, key_column="carrier", writer_id="w", batch_id=0
    )


@pytest.mark.parametrize("value", ["0", "-1", "1.0", "1025", "100000"])
def test_partitions_are_as_many_as_a_topic_can_have(value: str) -> None:
    with pytest.raises(InvalidArgument, match=f"partitions is a whole number from 1 to 1024, not '{value}'"):
        parse_sink({"path": "p", "topic": "t", "partitions": value})


@pytest.mark.parametrize("value", ["-1", "x", "1.0", str(2**63)])
def test_a_batch_id_is_a_number_from_0(value: str) -> None:
    with pytest.raises(InvalidArgument, match="batchId is a whole number from 0"):
        parse_sink({"path": "p", "topic": "t", "batchId": value})


# --- numbers that nothing can hold

_LONG = "9" * 5000
_ODD = [
    "-1",
    str(2**63),
    str(2**64),
    _LONG,
    f"-{_LONG}",
    f"0{_LONG}",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e400",
    "1e5",
    "0x10",
    "９",
]
_COUNTS = [
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
]
_TRUTHS = ["failOnDataLoss", "pushDownPredicate", "includeHeaders"]
_TIMES = ["startingTimestamp", "endingTimestamp"]
_TIMES_BY_TOPIC = ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"]
_OFFSETS = ["startingOffsets", "endingOffsets"]
_INSIDE = ['{"flights":{"0":%s}}', '{"flights":{"%s":1357034400000}}', '{"flights":%s}', "%s", "[" * 100_000 + "%s"]


def refused(parse: Callable[[dict[str, str]], object], given: dict[str, str], option: str) -> None:
    """The error names the option, and can be read though the value is long."""
    with pytest.raises(InvalidArgument) as caught:
        parse(given)
    assert str(caught.value).startswith(option)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("value", _ODD, ids=lambda value: value[:24])
def test_numbers_that_cannot_be_are_refused_by_the_name_of_their_option(value: str) -> None:
    for option in (*_COUNTS, *_TRUTHS, *_TIMES, "metadata", "startingOffsetsByTimestampStrategy"):
        refused(parse_source, BASE | {option: value}, option)
    for option in (*_OFFSETS, *_TIMES_BY_TOPIC):
        for inside in _INSIDE:
            # An end may be -1, latest.
            if (option, inside, value) not in {(each, _INSIDE[0], "-1") for each in _OFFSETS}:
                refused(parse_source, BASE | {option: inside % value}, option)
    for inside in ('{"flights":[%s]}', '{"flights":[0,%s]}', '{"flights":%s}', "%s"):
        refused(parse_source, {"path": "p", "assign": inside % value}, "assign")
    for text in (value, f"{value} m", f"{value}s"):
        if text != "1e5":
            refused(parse_source, BASE | {"maxTriggerDelay": text}, "maxTriggerDelay")
    for option in ("partitions", "batchId", "createTopic", "mergeSchema"):
        refused(parse_sink, {"path": "p", "topic": "t", option: value}, option)


def test_zeros_before_a_number_do_not_count() -> None:
    assert source(maxOffsetsPerTrigger="0" * 5000 + "7").max_offsets_per_trigger == 7
    assert parse_sink({"path": "p", "topic": "t", "batchId": "000"}).batch_id == 0


@pytest.mark.parametrize("text", [f"-{_LONG} minutes", f"{_LONG}-01-01T00:00:00Z", "-nan s", "-inf days", "-1e400 s"])
def test_times_that_no_calendar_has_are_refused_by_the_name_of_their_option(text: str) -> None:
    for option in _TIMES:
        refused(parse_source, BASE | {option: text}, option)


def test_the_first_look_up_imports_neither_pandas_nor_the_engine() -> None:
    """Spark imports every pyspark_* package whenever any data source is looked up."""
    code = (
        "import pyspark.sql.datasource, sys; before = set(sys.modules); import pyspark_jjq; "
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('pyspark_jjq')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "numpy", "pyarrow", "sqlite3", "jjq"} & {name.split(".")[0] for name in eval(out)}


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}/_checkpoint", "file://{}/topics/../_checkpoint", "{}/a b"])
def test_a_checkpoint_in_the_store_is_refused(form: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "link").symlink_to(store)
    for named in (store, tmp_path / "link"):
        with pytest.raises(
            InvalidArgument, match=r"checkpointLocation .* is in the store .*; name a directory beside it"
        ):
            parse_sink({"path": str(store), "topic": "t", "checkpointLocation": form.format(named)})


@pytest.mark.parametrize("checkpoint", ["{}-checkpoint", "{}/../checkpoint", "hdfs://h{}/c", "s3a://bucket/c", ""])
def test_one_elsewhere_is_not(checkpoint: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert parse_sink({"path": str(store), "topic": "t", "checkpointlocation": checkpoint.format(store)}).topic == "t"
    broker = {"broker": "jjq://localhost:1", "topic": "t", "checkpointlocation": "c"}
    assert parse_sink(broker).topic == "t"


@pytest.mark.parametrize("more", [{}, {"broker": "jjq://localhost:1"}])
def test_a_path_that_only_a_shell_knows_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"'~/jjq' begins with ~.*: write the whole path"):
        parse_source({"path": "~/jjq", "topic": "t", **more})
