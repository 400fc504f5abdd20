"""`format("jjq")`: what Spark asks for by name, and nothing more; each method hands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_jjq.telling import telling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pyspark_jjq.options import SourceOptions


class DefaultSource(DataSource):
    """A topic as a DataFrame and a stream, and a DataFrame or a stream into a topic.

    Spark makes one per query in a Python process of its own, pickles it, and uses the copies elsewhere. Imports are
    inside the methods since Spark imports this module whenever it looks up any data source.
    """

    _told = False  # whether somebody was told what is ignored; the copies know

    @classmethod
    def name(cls) -> str:
        return "jjq"

    @telling()
    def schema(self) -> StructType:
        from pyspark_jjq.rows import spark_schema
        from pyspark_jjq.stores import open_topics
        from pyspark_jjq.tables import defined, is_definition, note

        table = defined(self.options) if is_definition(self.options) else None
        options = self._parsed(self.options if table is None else table)
        schema = spark_schema(open_topics(options.path, options.choice), options)
        return schema if table is None else note(schema, table)

    @telling()
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_jjq.reader import batch_reader
        from pyspark_jjq.rows import Rows
        from pyspark_jjq.stores import open_topics
        from pyspark_jjq.tables import to_read

        options = self._parsed(to_read(self.options, schema))
        return batch_reader(options, Rows.of(open_topics(options.path, options.choice), schema, options))

    @telling()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_jjq.rows import Rows
        from pyspark_jjq.stores import open_topics
        from pyspark_jjq.stream import StreamReader
        from pyspark_jjq.tables import to_read

        options = self._parsed(to_read(self.options, schema))
        topics = open_topics(options.path, options.choice)
        return StreamReader(options, Rows.of(topics, schema, options), topics)

    @telling()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_jjq.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    @telling()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_jjq.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)

    def _parsed(self, given: Mapping[str, str]) -> SourceOptions:
        from pyspark_jjq.options import parse_source, tell_ignored

        options = parse_source(given)
        if not self._told:
            tell_ignored(options.ignored)
            self._told = True
        return options
