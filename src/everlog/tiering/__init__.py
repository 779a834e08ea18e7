"""tiering: buckets, and what is made of objects that are created once: numbers, journals, packs."""

from everlog.tiering.directory_bucket import DirectoryBucket
from everlog.tiering.group_journal import GroupJournal
from everlog.tiering.journal_archive import JournalArchive
from everlog.tiering.journal_reader import JournalReader
from everlog.tiering.journal_writer import JournalWriter
from everlog.tiering.memory_bucket import MemoryBucket
from everlog.tiering.numbered import NumberedObjects, block_of, milestones_above
from everlog.tiering.object_journal import BUCKET_GROUP_S, DIRECTORY_GROUP_S, ObjectJournal
from everlog.tiering.object_store import ObjectStoreBucket, open_object_store
from everlog.tiering.pack_format import (
    PACK_BYTES,
    AllPacks,
    PackedFile,
    PackRecord,
    Packs,
    StreamsRemoved,
    Told,
)
from everlog.tiering.pack_manifest import PackManifest, read_manifest, read_packs
from everlog.tiering.packs import BucketPacks, PackWriter
from everlog.tiering.pipeline import Statement
from everlog.tiering.places import check_bucket, open_bucket
from everlog.tiering.ports import Bucket, StoredObject
from everlog.tiering.postgres import Database, make_schema
from everlog.tiering.postgres_journal import PostgresJournal, make_journal_tables
from everlog.tiering.scrub import UNNAMED_S, bucket_clock, plan_scrub, scrub
