"""What the library tells programs to do, as what to type."""

from __future__ import annotations

import re

# What is said of Python's arguments, and of the command's.
_SAID = (
    ("; pass exist_ok=True to use it as it is", "; add --exist-ok to leave it as it is"),
    ("give it topics to read, write or admin", "give it topics by --read, --write or --admin, such as --read '*'"),
    (
        "make it with timestamps='producer' to push them",
        "make one with `jjq topic create --timestamps producer` to push them",
    ),
    ("raise the limit with alter_topic", "raise the limit with `jjq topic alter`"),
    ("Add one with alter_topic(add_columns=...)", "Add one with `jjq topic alter --add-column NAME:TYPE`"),
    ("add some with alter_topic", "add some with `jjq topic alter --partitions`"),
    ("change it with alter_topic", "change it with `jjq topic alter`"),
    (
        "Columns are added with alter_topic(add_columns=...)",
        "Columns are added with `jjq topic alter --add-column NAME:TYPE`",
    ),
    ("make it with create=True", "make it with `jjq channel create`"),
    (
        "make one with jjq.open(path) or `jjq topic create`",
        "name it with --store or JJQ_STORE, or make one with `jjq topic create`",
    ),
    ("; name its directory", "; name it with --store or JJQ_STORE"),
    (", or open it with read_only=True", ""),
    ("; read from 'earliest', or with on_data_loss='skip'", "; add --start earliest, or --on-data-loss skip"),
    (" on, or with on_data_loss='skip'", " on (--end, --start), or add --on-data-loss skip"),
    ("with create_subscriber, or `jjq subscriber create`", "with `jjq subscriber create`"),
    ("; null is None", "; write null"),
    ("batch_id ", "--batch "),
    (
        "Commit what belongs together at once (store.stage), and give each write a writer_id of its own; `jjq writer",
        "Give each its own --writer; `jjq writer",
    ),
)
_SEEK = re.compile(r"store\.subscriber\('([^']*)'\)\.seek\(\{(\d+): (\d+)\}\)")
_METADATA = re.compile(r"; read\(metadata=\[.*?\]\) adds what is no column")
_MAKE = re.compile(
    r"^(there is no subscriber '([^']*)'.*; make it) with create_subscriber, or `jjq subscriber create`$"
)
_USE = re.compile(r"; use it with store\.subscriber\('[^']*'\)")
_HANDLE = re.compile(r"; get it again with store\.topic\('[^']*'\), if it was made again")


def for_command_line(message: str) -> str:
    """An error's message in the words of the command line."""
    message = _MAKE.sub(r"\1 with `jjq subscriber create TOPIC \2`", message)
    for python, typed in _SAID:
        message = message.replace(python, typed)
    message = _USE.sub("; add --exist-ok to leave it as it is", message)
    message = _METADATA.sub("; --output json shows what is no column", message)
    message = _SEEK.sub(r"`jjq subscriber seek \1 \2=\3`", message)
    return _HANDLE.sub("", message)
