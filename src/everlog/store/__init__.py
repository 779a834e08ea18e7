"""store: topics meet the log; what was kept is found by filter and position."""

from everlog.store.batch_filter import BatchFilter
from everlog.store.begin import Begin, BeginKind, locate, parse_begin, show_positions
from everlog.store.cold_store import ColdStore
from everlog.store.free_space import FreeSpace
from everlog.store.indexer import TopicIndexer
from everlog.store.keep_rules import KeepRules, read_keep_rules, say_unkept, unkept_notes, write_keep_rules
from everlog.store.lake_record import FILE_NAME as LAKE_RECORD
from everlog.store.lake_record import LakeRecord, read_lake_record, write_lake_record
from everlog.store.log_store import LogStore, ShardStatistics, StoreReader
from everlog.store.read_result import Found, Lost, Positions, Reader, ReadResult
from everlog.store.retention_classes import MOST_CLASSES, TopicClasses
from everlog.store.shard_places import place_shards
from everlog.store.sharding import MAX_SHARDS, shard_of
from everlog.store.store_file import StoreFile, read_store_file, store_identity, write_store_file
from everlog.store.whole_file import read_record, write_record
