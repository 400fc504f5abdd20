"""The documentation says what is: every name is there, every link leads somewhere, every example runs."""

import contextlib
import dataclasses
import inspect
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq import model, objects, reports
from jjq.batch import PushFuture
from jjq.config import TopicConfig
from jjq.errors import JjqError
from jjq.log import format as fmt
from jjq.log import waiting
from jjq.producer import Producer
from jjq.pubsub import PubSub
from jjq.schema import METADATA_TYPES
from jjq.server.settings import ServerSettings
from jjq.staging import Stage
from tests.examples import blocks, python_blocks, run_block

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DURATIONS = {"segment_age_us": "segment_age", "retention_us": "retention"}  # how callers write them


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def is_named(name: str, text: str) -> bool:
    """Whether a word stands in a text as code: `name`, `x.name`, `name(...)` and the like."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", code) is not None


# --- every name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", jjq.__all__)
def test_every_public_name_is_in_the_page_on_python(name: str) -> None:
    assert is_named(name, page("docs/python.md"))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TopicConfig)])
def test_every_setting_is_documented_with_its_default(field: str) -> None:
    text = page("docs/python.md")
    assert is_named(field, text)
    assert re.search(rf"^\| `{DURATIONS.get(field, field)}` \| \S", text, re.MULTILINE)


# How the page calls what has the methods it gives the signatures of.
_SIGNATURES = {
    "jjq": (jjq, "open connect"),
    "store": (
        jjq.Store,
        "create_topic alter_topic topic delete_topic create_subscriber subscriber channel producer pubsub publish stage commit close",
    ),
    "topic": (jjq.Topic, "push push_many push_table push_file read to_pandas offsets describe empty"),
    "subscriber": (jjq.Subscriber, "pop peek poll commit seek lag close"),
    "channel": (jjq.Channel, "receive ack_many requeue_many touch_many close"),
    "delivery": (jjq.Delivery, "ack requeue touch"),
    "subscription": (PubSub, "subscribe psubscribe unsubscribe punsubscribe get_message listen close"),
}


def signature(function: Any) -> str:
    """As in the page: without types, but for that of what it returns; and without what only tests give."""
    found = inspect.signature(function)
    kept = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in found.parameters.items()
        if name not in ("self", "clock")
    ]
    returns = str(found.return_annotation).rpartition(".")[2]
    return f"{found.replace(parameters=kept, return_annotation=inspect.Signature.empty)} -> {returns}"


def test_signatures_are_those_of_the_code() -> None:
    wanted = [
        f"{owner}.{name}{signature(getattr(kind, name))}"
        for owner, (kind, names) in _SIGNATURES.items()
        for name in names.split()
    ]
    (block,) = re.findall(r"```text\n(.*?)```", section(page("docs/python.md"), "Signatures"), re.DOTALL)
    assert [" ".join(each.split()) for each in re.split(r"\n+(?! )", block.strip())] == wanted


_VALUES = {
    name: kind
    for module in (model, objects, reports)
    for name, kind in vars(module).items()
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
}
_INSIDE = {"Segment"}  # a slice's hint where its records lay, and nobody's to read


def returned() -> list[str]:
    """The values that public calls return, and those that these have within them."""
    kinds: list[type] = [jjq.Store, jjq.Topic, jjq.Subscriber, jjq.Channel, Producer, PushFuture, Stage]
    calls = [each for kind in kinds for name, each in vars(kind).items() if callable(each) and not name.startswith("_")]
    said = [*jjq.__all__, *(str(inspect.signature(each).return_annotation) for each in calls)]
    found: set[str] = set()
    while new := {word for text in said for word in re.findall(r"\w+", text)} & _VALUES.keys() - found - _INSIDE:
        found |= new
        said = [str(each) for name in new for each in _VALUES[name].__annotations__.values()]
    return sorted(found)


def facts_of(kind: Any) -> list[str]:
    """The fields of a value, and what it says by properties."""
    said = [name for name, each in vars(kind).items() if isinstance(each, property) and not name.startswith("_")]
    return [*(name for name in getattr(kind, "__annotations__", ()) if not name.startswith("_")), *said]


@pytest.mark.parametrize("name", returned())
def test_every_field_of_what_calls_return_is_documented(name: str) -> None:
    rows = {row[0].strip("`"): row[2] for row in table_rows(section(page("docs/python.md"), "What calls return"))}
    assert name in rows
    assert [each for each in facts_of(_VALUES[name]) if not is_named(each, rows[name])] == []


def test_only_what_calls_return_is_among_it() -> None:
    rows = table_rows(section(page("docs/python.md"), "What calls return"))
    assert {row[0].strip("`") for row in rows} == {*returned(), "Delivery", "Positions"}  # which are no plain values


def errors(kind: type[JjqError] = JjqError) -> Iterator[type[JjqError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == "jjq.errors":
            yield from errors(each)


@pytest.mark.parametrize("error", sorted(set(errors()), key=lambda each: each.code), ids=lambda each: each.code)
def test_every_error_is_documented_with_its_code_and_whether_to_try_again(error: type[JjqError]) -> None:
    row = f"| `{error.__name__}` | `{error.code}` | {'yes' if error.retryable else 'no'} |"
    assert row in page("docs/python.md")


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in set(errors())]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", METADATA_TYPES)
def test_every_metadata_column_is_documented(name: str) -> None:
    for where in ("docs/glossary.md", "docs/python.md", "docs/spark.md"):
        assert is_named(name, page(where)), where


def test_every_spark_option_is_documented_with_its_default() -> None:
    options = pytest.importorskip("pyspark_jjq.options", reason="pyspark is not installed")
    text = page("docs/spark.md")
    for heading, wanted in (("Source options", options.SOURCE_OPTIONS), ("Sink options", options.SINK_OPTIONS)):
        rows = {row[0].strip("`"): row[1] for row in table_rows(section(text, heading))}
        assert rows == {each.name: each.default for each in wanted}


def test_every_spark_option_has_its_place_beside_kafkas() -> None:
    options = pytest.importorskip("pyspark_jjq.options", reason="pyspark is not installed")
    text = page("docs/kafka.md")
    assert [
        each.name for each in (*options.SOURCE_OPTIONS, *options.SINK_OPTIONS) if not is_named(each.name, text)
    ] == []


MODULES = sorted(
    path.relative_to(source).as_posix()
    for source in (ROOT / "broker" / "jjq", ROOT / "connector" / "pyspark_jjq")
    for path in source.rglob("*.py")
    if path.read_text(encoding="utf-8").count("\n") > 1 and path.parent.name != "cli"
)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_place_in_the_order_of_reading(module: str) -> None:
    assert re.search(rf"[/`]{re.escape(module)}`\]", page("docs/reading.md")), module


def test_every_test_that_the_page_on_exactly_once_names_is_there() -> None:
    text = page("docs/exactly-once.md")
    files, names = set(re.findall(r"`(tests/[\w/]+\.py)`", text)), set(re.findall(r"`(test_\w+)`", text))
    assert len(files) >= 10
    assert len(names) >= 10
    assert [file for file in files if not (ROOT / file).is_file()] == []
    there = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    assert [name for name in names if f"def {name}(" not in there] == []


# --- links -----------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The fragments that a page's headings can be reached by."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, fragment = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        if fragment and linked.suffix == ".md":
            assert fragment in anchors(linked.read_text(encoding="utf-8")), target


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/channels.md"])
def test_examples_run_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = [block for block in python_blocks(ROOT / name) if not block.is_spark]
    assert python
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.ExitStack() as opened:
        opened.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        for block in python:
            try:
                run_block(ROOT / name, block, names)
            finally:
                for value in names.values():
                    if isinstance(value, jjq.Store):
                        opened.callback(value.close)
        for block in blocks(ROOT / name, "sh"):
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            environment = os.environ | {"PATH": path, "JJQ_STORE": "data/jjq"}
            subprocess.run(["sh", "-euc", block.code], env=environment, check=True)


def test_no_example_makes_a_topic_by_the_name_that_the_brokers_events_have() -> None:
    """Where one reads on with the same store, `/api/events` would be refused."""
    name = ServerSettings(store="data/jjq").events_topic
    made = re.compile(rf"create_topic\(.{name}\b|topic create {name}\b")
    assert [str(path) for path in PAGES if made.search(path.read_text(encoding="utf-8"))] == []


# --- bytes -----------------------------------------------------------------------------------------------------------


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, heading
    return match.group(1)


def table_rows(text: str) -> list[list[str]]:
    """The cells of the first table in a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    end = next((i for i, line in enumerate(text.splitlines()) if line.startswith("|")), 0)
    table = []
    for line in text.splitlines()[end:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
    assert lines, "no table"
    return table[2:]


def fields_of(*formats: str) -> list[tuple[int, int]]:
    """(position, size) of each field of structs that follow one another; padding is a field too."""
    found, position = [], 0
    for each in formats:
        for count, code in re.findall(r"(\d*)([a-zA-Z])", each.lstrip("<")):
            whole = code in "sx"
            size = int(count or 1) if whole else struct.calcsize("<" + code)
            for _ in range(1 if whole else int(count or 1)):
                found.append((position, size))
                position += size
    return found


def documented(heading: str) -> list[tuple[int, int]]:
    rows = table_rows(section(page("docs/format.md"), heading))
    return [(int(row[0]), int(row[1].split()[0])) for row in rows]


def test_the_field_of_an_active_message_is_as_drawn() -> None:
    fields = fields_of(fmt.ACTIVE.format, fmt.ACTIVE_CRC.format)
    assert documented("The field of an active message") == fields
    text = section(page("docs/format.md"), "The field of an active message")
    size = fmt.ACTIVE.size + fmt.ACTIVE_CRC.size
    assert f"{size} bytes become {fmt.ACTIVE_CHARS} characters" in text
    assert f"the last {fmt.CRC_CHARS} of the {fmt.ACTIVE_CHARS} characters as `{fmt.NO_CRC.decode()}`" in text


def test_an_index_entry_is_as_drawn() -> None:
    text = page("docs/format.md")
    assert documented("`<id>.index`: what counts in a stream file") == fields_of(fmt._ENTRY_WITH_CRC.format)
    assert f"Entries of exactly {fmt.ENTRY_SIZE} bytes" in text
    assert f"`{fmt.RESIDUE:#010x}`" in text


def test_kinds_and_reasons_of_entries_are_as_listed() -> None:
    text = page("docs/format.md")
    assert re.findall(r"^\| (\d) \| ([A-Z]+) \|", text, re.MULTILINE) == [
        (str(fmt.OPEN), "OPEN"), (str(fmt.BATCH), "BATCH"), (str(fmt.CLOSE), "CLOSE"),
        (str(fmt.SYNC), "SYNC"),
    ]  # fmt: skip
    assert re.findall(r"^\| (\d) \| ([a-z]+) \|", text, re.MULTILINE) == [
        (str(number), reason) for number, reason in enumerate(fmt.CLOSE_REASONS)
    ]


def test_what_processes_ask_of_each_other_is_as_drawn() -> None:
    numbers, last, slots = documented("`waiting`: what processes ask of each other")
    assert numbers == (0, waiting.NUMBERS.size)
    assert last == (waiting.NUMBERS.size, 1)
    assert slots == (waiting.SLOT_BYTES, waiting.SLOTS)
    assert documented("An answer and a request") == fields_of(waiting.ANSWER.format, "<4s")
    assert f"At byte {waiting.REQUEST_AT} of the slot" in page("docs/format.md")


def test_the_field_of_a_sealed_batch_is_as_drawn() -> None:
    *fixed, crcs = documented("The field of a sealed batch")
    assert fixed == fields_of(fmt._SEALED.format)
    assert crcs == (fmt._SEALED.size, 4)


def test_the_magics_are_as_written() -> None:
    text = page("docs/format.md")
    for magic in (fmt.MAGIC_ACTIVE, fmt._MAGIC_SEALED):
        assert f"`{magic.decode()}`" in text
        assert f"`{fmt.b2a_base64(magic, newline=False).decode()}`" in text
    assert fmt.FORMAT_VERSION == 1  # the tables are of this version


def test_every_segment_file_and_every_table_of_the_catalog_is_described() -> None:
    text = page("docs/format.md")
    migrations = (ROOT / "broker" / "jjq" / "catalog" / "migrations").glob("*.sql")
    tables = re.findall(r"CREATE TABLE (\w+)", "".join(each.read_text(encoding="utf-8") for each in migrations))
    assert [name for name in tables if name != "meta" and not is_named(name, section(text, "`catalog.db`"))] == []
    assert all(f"<id>{suffix}" in text for suffix in (".arrows", ".index", ".arrow", ".json"))
