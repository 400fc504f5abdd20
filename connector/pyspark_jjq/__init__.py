"""Spark data source `jjq`: reads and writes the topics of a store.

Spark imports every installed module named `pyspark_*` at its first look-up of any data source and takes `DefaultSource`
from it, so nothing heavy is imported here: the library, pyarrow and the rest come when a topic is read or written.
"""

from pyspark_jjq.source import DefaultSource

__all__ = ["DefaultSource"]
