from everlog.base.positions cimport NOT_KEPT
from everlog.base.records cimport Records
from everlog.sessions.merged_subscription cimport MergedSubscription
from everlog.sessions.outgoing_rows cimport OutgoingRows


cpdef bint is_early(MergedSubscription merged, Records records, int shard) except -1
