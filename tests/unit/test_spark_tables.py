"""What a table's options become on their way through Spark's catalog. tests/spark/test_tables.py has the statements."""

from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark_jjq.tables", reason="pyspark is not installed")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from jjq.errors import InvalidArgument
from pyspark_jjq import tables

COLUMNS = StructType([StructField("carrier", StringType()), StructField("delay", IntegerType())])
# As Spark 4.3 passes the properties of CREATE TABLE … OPTIONS (path '…', topic 'flights', startingOffsets 'earliest').
PROPERTIES = {
    "location": "file:/data/my%20100%25%20store",
    "path": "file:/data/my%20100%25%20store",
    "provider": "jjq",
    "owner": "someone",
    "comment": "departures",
    "topic": "flights",
    "option.topic": "flights",
    "startingoffsets": "earliest",
    "option.startingoffsets": "earliest",
}
OPTIONS = {"path": "/data/my 100% store", "topic": "flights", "startingoffsets": "earliest"}
NOTED = tables.note(COLUMNS, OPTIONS)


def test_options_are_told_from_other_properties() -> None:
    assert tables.is_definition(PROPERTIES)
    assert not tables.is_definition(OPTIONS)
    assert tables.defined(PROPERTIES) == OPTIONS


def test_a_misspelt_option_is_kept_to_be_refused_and_a_property_is_not() -> None:
    assert tables.defined({"option.topik": "t", "team": "ops"}) == {"topik": "t"}


@pytest.mark.parametrize("name", ["token", "option.token", "option.TOKEN"])
def test_a_token_is_kept_in_no_table(name: str) -> None:
    with pytest.raises(InvalidArgument, match="token is not for tables"):
        tables.defined({"provider": "jjq", "option.broker": "jjq://localhost", name: "jjq_secret"})


def test_a_read_of_a_table_has_its_options_and_its_own_before_them() -> None:
    assert tables.to_read({}, NOTED) == OPTIONS
    assert tables.to_read({"startingoffsets": "latest"}, NOTED) == OPTIONS | {"startingoffsets": "latest"}
    expected = {"path": OPTIONS["path"], "startingoffsets": "earliest", "subscribepattern": "f.*"}
    assert tables.to_read({"subscribepattern": "f.*"}, NOTED) == expected


def test_which_columns_a_table_has_its_schema_says_unless_the_read_does() -> None:
    noted = tables.note(COLUMNS, OPTIONS | {"columns": "carrier", "METADATA": "_key", "includeHeaders": "true"})
    assert tables.to_read({}, noted) == OPTIONS
    assert tables.to_read({"columns": "delay"}, noted) == OPTIONS | {"columns": "delay"}


def test_options_that_name_a_store_stand_alone() -> None:
    given = {"path": "/other", "topic": "t"}
    assert tables.to_read(given, NOTED) == given
    assert tables.to_write(given, NOTED) == given


def test_a_read_without_options_says_how_to_make_the_table() -> None:
    with pytest.raises(InvalidArgument, match="CREATE TABLE flights USING jjq OPTIONS"):
        tables.to_read({}, COLUMNS)


@pytest.mark.parametrize("given", [{}, {"checkpointlocation": "/c"}, {"writerid": "w", "batchid": "1"}])
def test_a_write_never_takes_what_is_noted_and_quotes_it(given: dict[str, str]) -> None:
    schema = tables.note(COLUMNS, OPTIONS | {"path": "/data/o'clock"})
    with pytest.raises(InvalidArgument, match=r"WITH \(path '/data/o\\'clock', topic 'flights'\)"):
        tables.to_write(given, schema)


@pytest.mark.parametrize("name", ["my 100% store", "a%20b", "a%25", "plus+é"])
def test_a_path_is_taken_as_it_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for written in (f"file:{tmp_path}/{name}", f"file:{quote(str(tmp_path / name))}", f"file://{tmp_path}/{name}"):
        assert tables.defined({"provider": "jjq", "path": written})["path"] == str(tmp_path / name)


def test_a_relative_path_is_that_of_where_the_table_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for written in ("data/jjq", "./data/jjq/", "data/../data/jjq"):
        assert tables.defined({"provider": "jjq", "path": written})["path"] == str(tmp_path / "data" / "jjq")


def test_a_home_directory_is_not_looked_for_where_the_table_is_made() -> None:
    with pytest.raises(InvalidArgument, match="write the whole path"):
        tables.defined({"provider": "jjq", "path": "~/jjq"})
