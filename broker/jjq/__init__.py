"""jjq: a message log with an infinite, replayable history that is also a table.

```python
import jjq

with jjq.open("data/jjq") as store:
    greetings = store.create_topic("greetings", exist_ok=True)
    position = greetings.push(b"hello", key=b"greeting")
    greetings.to_pandas()
```
"""

from jjq.channel import Channel, Delivery
from jjq.client import connect
from jjq.errors import (
    BrokerUnavailable,
    ChannelNotFound,
    DamagedSegment,
    DataLoss,
    DeliveryExpired,
    Forbidden,
    InvalidArgument,
    InvalidName,
    JjqError,
    OffsetOutOfRange,
    RecordTooLarge,
    SchemaMismatch,
    StagedFileMissing,
    StoreClosed,
    StoreError,
    StoreFormat,
    StoreNotFound,
    StoreReadOnly,
    SubscriberBusy,
    SubscriberExists,
    SubscriberNotFound,
    TooManyRequests,
    TopicDeleted,
    TopicExists,
    TopicFull,
    TopicNotFound,
    Unauthorized,
    WriterConflict,
)
from jjq.model import (
    ChannelCounts,
    Commit,
    ConsumerInfo,
    PartitionLag,
    PartitionOffsets,
    Position,
    Positions,
    Record,
    SegmentInfo,
    Slice,
    StagedFile,
    TopicOffsets,
    WriterInfo,
)
from jjq.store import Store
from jjq.store import open_store as open  # noqa: A004 - jjq.open reads as what it does
from jjq.subscriber import Subscriber
from jjq.topic import Topic

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailable", "Channel", "ChannelCounts", "ChannelNotFound", "Commit", "ConsumerInfo", "DamagedSegment", "DataLoss", "Delivery",
    "DeliveryExpired", "Forbidden", "InvalidArgument", "InvalidName", "JjqError", "OffsetOutOfRange", "PartitionLag",
    "PartitionOffsets", "Position", "Positions", "Record", "RecordTooLarge", "SchemaMismatch", "SegmentInfo", "Slice",
    "StagedFile", "StagedFileMissing", "Store", "StoreClosed", "StoreError", "StoreFormat", "StoreNotFound",
    "StoreReadOnly", "Subscriber", "SubscriberBusy", "SubscriberExists", "SubscriberNotFound", "TooManyRequests",
    "Topic", "TopicDeleted", "TopicExists", "TopicFull", "TopicNotFound", "TopicOffsets", "Unauthorized",
    "WriterConflict", "WriterInfo", "connect", "open",
]  # fmt: skip
