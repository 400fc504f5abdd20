"""What can go wrong, one class for each thing a caller would do differently.

Every error has a stable `code` (for scripts, the CLI's exit and the HTTP face) and says whether the same call may
succeed when it is made again (`retryable`). Messages name what to do next.
"""

from __future__ import annotations

import errno
from typing import Any

# What the file system says again however often it is asked.
_LASTING = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
     errno.ESPIPE, errno.ENXIO)
)  # fmt: skip


class JjqError(Exception):
    """Root of everything jjq raises on purpose."""

    code = "error"
    retryable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers), keyword arguments included.
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(kind: type[JjqError], message: str, details: dict[str, Any]) -> JjqError:
    return kind(message, **details)


class InvalidArgument(JjqError, ValueError):
    """An argument has a value that cannot be used; nothing was changed."""

    code = "invalid_argument"


class InvalidName(InvalidArgument):
    """A topic, subscriber, channel or writer name breaks the one rule for names."""

    code = "invalid_name"


class SchemaMismatch(InvalidArgument):
    """Records or a schema change do not fit the topic's schema."""

    code = "schema_mismatch"


class RecordTooLarge(InvalidArgument):
    """A record or a batch is over the topic's limit."""

    code = "record_too_large"


class TopicNotFound(JjqError, KeyError):
    code = "topic_not_found"

    def __str__(self) -> str:
        return self.message


class TopicExists(JjqError):
    code = "topic_exists"


class TopicDeleted(JjqError):
    """The topic this handle was made for is gone (it may have been made again under the same name)."""

    code = "topic_deleted"


class TopicFull(JjqError):
    """A bounded topic whose policy is to refuse has as many unread records as it takes; nothing was pushed."""

    code = "topic_full"
    retryable = True


class SubscriberNotFound(JjqError, KeyError):
    code = "subscriber_not_found"

    def __str__(self) -> str:
        return self.message


class SubscriberExists(JjqError):
    code = "subscriber_exists"


class SubscriberBusy(JjqError):
    """Another consumer polls this subscriber; `pop` may be shared, `poll` and iteration may not."""

    code = "subscriber_busy"
    retryable = True


class ChannelNotFound(JjqError, KeyError):
    """There is no such channel, or it was deleted while it was used."""

    code = "channel_not_found"

    def __str__(self) -> str:
        return self.message


class DeliveryExpired(JjqError):
    """Deliveries are no longer this consumer's: they timed out and were delivered again or given up, or the channel was
    emptied.

    Whatever else the call was asked to do was done. `expired` are their (partition, offset) pairs.
    """

    code = "delivery_expired"

    @property
    def expired(self) -> list[tuple[int, int]]:
        return list(self.details.get("expired", ()))


class DataLoss(JjqError):
    """Records that were asked for are no longer there.

    `topic`, `partition`, `asked` (offset), `earliest` (offset that is left), `lost` (records).
    """

    code = "data_loss"

    @property
    def topic(self) -> str:
        return str(self.details.get("topic"))

    @property
    def partition(self) -> int:
        return int(self.details["partition"])

    @property
    def asked(self) -> int:
        return int(self.details["asked"])

    @property
    def earliest(self) -> int:
        return int(self.details["earliest"])

    @property
    def lost(self) -> int:
        return int(self.details["lost"])


class OffsetOutOfRange(InvalidArgument):
    """An offset beyond the end of a partition."""

    code = "offset_out_of_range"


class DamagedSegment(JjqError):
    """A file does not hold what was written: `path`, `position` (bytes), `lost` (offsets `[start, end)` or None)."""

    code = "damaged_segment"

    @property
    def path(self) -> str:
        return str(self.details.get("path"))

    @property
    def position(self) -> int:
        return int(self.details.get("position", 0))


class StoreError(JjqError):
    """The disk or the file system refused: `operation`, `path`, `errno`; the cause is chained.

    `retryable` unless what refused stays as it is until somebody changes it: permissions, names, kinds of files.
    """

    code = "store_error"
    retryable = True

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.retryable = details.get("errno") not in _LASTING


class StoreReadOnly(JjqError):
    code = "store_read_only"


class StoreClosed(JjqError):
    code = "store_closed"


class StoreNotFound(JjqError):
    code = "store_not_found"


class StoreFormat(JjqError):
    """The directory is no store, or one of a format this version cannot read."""

    code = "store_format"


class WriterConflict(JjqError):
    """A writer's batch does not follow what that writer has committed; see `jjq writer reset`."""

    code = "writer_conflict"


class StagedFileMissing(JjqError):
    """A staged file is gone or is not what was staged; the commit did nothing."""

    code = "staged_file_missing"


class Unauthorized(JjqError):
    """The broker does not know who asks: there was no token, or one that it does not know (any more)."""

    code = "unauthorized"


class Forbidden(JjqError):
    """The token does not give the right to do that."""

    code = "forbidden"


class TooManyRequests(JjqError):
    """More than the broker takes, in all or from this token; nothing was done. `retry_after`: seconds to wait."""

    code = "too_many_requests"
    retryable = True

    @property
    def retry_after(self) -> float:
        return float(self.details.get("retry_after", 1.0))


class BrokerUnavailable(JjqError):
    """The broker cannot be reached, or went away while it did what was asked.

    `retryable` unless that may be done, so that to ask again could do it twice.
    """

    code = "broker_unavailable"
    retryable = True

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.retryable = details.get("outcome") != "unknown"
