"""Errors as HTTP says them: a status, and a JSON object with jjq's code. No path of this machine gets into one."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jjq.errors import InvalidArgument, JjqError
from jjq.wire import shortened

# By code, as the two ends know errors by it. What is not here is the request's fault (400) or the broker's (500).
STATUS = {
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "wrong_origin": HTTPStatus.FORBIDDEN,
    "wrong_host": HTTPStatus.MISDIRECTED_REQUEST,
    "topic_not_found": HTTPStatus.NOT_FOUND,
    "subscriber_not_found": HTTPStatus.NOT_FOUND,
    "channel_not_found": HTTPStatus.NOT_FOUND,
    "record_not_found": HTTPStatus.NOT_FOUND,
    "writer_not_found": HTTPStatus.NOT_FOUND,
    "path_not_found": HTTPStatus.NOT_FOUND,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "request_timeout": HTTPStatus.REQUEST_TIMEOUT,
    "topic_exists": HTTPStatus.CONFLICT,
    "subscriber_exists": HTTPStatus.CONFLICT,
    "subscriber_busy": HTTPStatus.CONFLICT,
    "delivery_expired": HTTPStatus.CONFLICT,
    "writer_conflict": HTTPStatus.CONFLICT,
    "staged_file_missing": HTTPStatus.CONFLICT,
    "store_read_only": HTTPStatus.CONFLICT,
    "topic_deleted": HTTPStatus.GONE,
    "data_loss": HTTPStatus.GONE,
    "record_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "request_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unsupported_media_type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "too_many_requests": HTTPStatus.TOO_MANY_REQUESTS,
    "topic_full": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_error": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_closed": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
}

_PASSING = frozenset(("stopping", "request_timeout"))  # the same request may succeed later
# What of this server's own paths stands in a message is none of a file.
_PATH = re.compile(r"(?<![\w.:/}])/(?!(?:api|topic|channel|static)/)(?:[\w.@+-]+/)+[\w.@+-]*")
_SHOWN = ("topic", "partition", "asked", "earliest", "lost", "expired", "retry_after", "channel")
# What is said of Python's calls, and of requests.
_SAID = (
    ("; pass exist_ok=True to use it as it is", '; with "exist_ok": true it is used as it is'),
    ("raise the limit with alter_topic", "raise the limit by PATCH /api/topics/TOPIC"),
    (
        "Add one with alter_topic(add_columns=...)",
        'Add one by PATCH /api/topics/TOPIC with {"add_columns": {NAME: TYPE}}',
    ),
    (
        "Columns are added with alter_topic(add_columns=...)",
        'Columns are added by PATCH /api/topics/TOPIC with {"add_columns": {NAME: TYPE}}',
    ),
    ("change it with alter_topic", "change it by PATCH /api/topics/TOPIC"),
    ("add some with alter_topic", 'add some by PATCH /api/topics/TOPIC with {"partitions": N}'),
    ("make it with create=True", "make it by PUT /api/topics/TOPIC/channels/CHANNEL"),
    ("with create_subscriber, or `jjq subscriber create`", "by POST /api/subscribers"),
    (
        "make it with timestamps='producer' to push them",
        'make one by POST /api/topics with "timestamps": "producer" to push them',
    ),
    ("at once (store.stage)", "at once (POST /api/commit)"),
    ("; null is None", "; write null"),
    ("; read from 'earliest', or with on_data_loss='skip'", "; read with start=earliest, or on_data_loss=skip"),
    ("on_data_loss='skip'", "on_data_loss=skip"),
)
_SEEK = re.compile(r"store\.subscriber\('([^']*)'\)\.seek\(\{(\d+): (\d+)\}\)")
_METADATA = re.compile(r"; read\(metadata=\[.*?\]\) adds what is no column")
_RESET = re.compile(r"`jjq writer reset (\S+)`")
_HANDLE = re.compile(
    r"; use it with store\.subscriber\('[^']*'\)|; get it again with store\.topic\('[^']*'\), if it was made again"
)


class RequestError(InvalidArgument):
    """What is wrong is the request, and not what it asks for; the code says how."""

    code = "invalid_request"

    def __init__(self, message: str, code: str = "invalid_request", **details: Any) -> None:
        super().__init__(message, **details)
        self.code = code
        self.retryable = code in _PASSING


def status_of(error: JjqError) -> int:
    known = STATUS.get(error.code)
    if known is not None:
        return int(known)
    return 400 if isinstance(error, InvalidArgument) else 500


def body_of(error: JjqError, store: Path) -> dict[str, Any]:
    """What a client gets of an error."""
    found: dict[str, Any] = {
        "code": error.code, "message": shortened(for_http(without_paths(error.message, store))), "retryable": error.retryable,
    }  # fmt: skip
    details = {name: error.details[name] for name in _SHOWN if error.details.get(name) is not None}
    return found | ({"details": details} if details else {})


def unexpected(reference: str) -> dict[str, Any]:
    """What a client gets of a mistake of ours: nothing of what it was, but where to find it."""
    return {
        "code": "internal", "retryable": False,
        "message": f"the broker met an error that it did not expect; its log has it under {reference}",
    }  # fmt: skip


def without_paths(text: str, store: Path) -> str:
    """A message without the places of files: the store is called that, and so is what is in it."""
    inside = re.compile(rf"{re.escape(str(store))}(?:/[^\s:;,'\")]*)?")
    found = inside.sub("the store", text).replace(" in the store;", ";")
    return _PATH.sub("(a file)", found.replace("the catalog the store", "the store's catalog"))


def for_http(message: str) -> str:
    """An error's message in the words of requests, where it says what to call in Python."""
    for python, request in _SAID:
        message = message.replace(python, request)
    message = _SEEK.sub(r'POST /api/subscribers/\1/seek with {"start": {"\2": \3}}', message)
    message = _METADATA.sub("; the parameter metadata adds what is no column", message)
    message = _RESET.sub(r"DELETE /api/writers/\1", message)
    return _HANDLE.sub("", message)
