"""base: errors by blame, and the columns that messages travel in."""

from everlog.base.all_names import with_all_names
from everlog.base.arrow_columns import (
    Piece,
    count_rows,
    expiry_column,
    filled_values,
    flag_columns,
    has_properties,
    has_publishers,
    offset_column,
    payload_column,
    property_column,
    publisher_column,
    take_lists,
    take_texts,
    text_property_column,
    time_column,
    topic_column,
    user_property_columns,
)
from everlog.base.batch_assembly import assemble
from everlog.base.batch_merge import gather, select
from everlog.base.block_pool import BlockPool
from everlog.base.columns import (
    DROPPED,
    DUP,
    FOR_SESSIONS,
    FOR_SPILL,
    HAS_ALIAS,
    HAS_EXPIRY,
    QOS_BITS,
    QOS_SHIFT,
    RETAIN,
    AckRun,
    MessageColumns,
    PublishRun,
)
from everlog.base.errors import EverlogError, Fenced, PeerError, StorageError, Unavailable, UsageError, system_reason
from everlog.base.positions import (
    MAX_OFFSET,
    NOT_KEPT,
    OFFSET_BITS,
    RETAINED,
    is_retained,
    pack_position,
    unpack_position,
)
from everlog.base.publisher_name import (
    PublisherColumn,
    PublisherName,
    lost_publisher,
    name_publisher,
    split_publisher,
)
from everlog.base.record_builder import RecordBuilder
from everlog.base.records import (
    HEADER_BYTES,
    NO_PUBLISHER,
    Layout,
    Records,
    checked_columns,
    columns_range,
    rebased,
)
from everlog.base.rows import row_column
from everlog.base.tombstones import GONE, bytes_of_topics, empty_topics, is_emptied
from everlog.base.topic_table import TopicTable, table_of
