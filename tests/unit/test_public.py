"""The library's face: what `import jjq` promises. A change here is a change for everybody who uses it."""

import jjq

NAMES = [
    "BrokerUnavailable", "Channel", "ChannelCounts", "ChannelNotFound", "Commit", "ConsumerInfo", "DamagedSegment", "DataLoss", "Delivery",
    "DeliveryExpired", "Forbidden", "InvalidArgument", "InvalidName", "JjqError", "OffsetOutOfRange", "PartitionLag",
    "PartitionOffsets", "Position", "Positions", "Record", "RecordTooLarge", "SchemaMismatch", "SegmentInfo", "Slice",
    "StagedFile", "StagedFileMissing", "Store", "StoreClosed", "StoreError", "StoreFormat", "StoreNotFound",
    "StoreReadOnly", "Subscriber", "SubscriberBusy", "SubscriberExists", "SubscriberNotFound", "TooManyRequests",
    "Topic", "TopicDeleted", "TopicExists", "TopicFull", "TopicNotFound", "TopicOffsets", "Unauthorized",
    "WriterConflict", "WriterInfo", "connect", "open",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(jjq.__all__) == NAMES


def test_every_public_name_is_there() -> None:
    assert not [name for name in jjq.__all__ if not hasattr(jjq, name)]
