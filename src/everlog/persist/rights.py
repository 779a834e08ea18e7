"""Which right each request needs. The subject says which right was used, and the bus whether it may be."""

from everlog.bus import ADMINISTER, READ, WRITE, Place, shard_of_name
from everlog.streams import (
    Batch,
    Call,
    Configure,
    Delete,
    DeleteAll,
    Download,
    ErrorCode,
    Failure,
    FeedBootstrap,
    FeedResume,
    Fork,
    Get,
    GetAll,
    Info,
    KvCas,
    KvCreate,
    KvDelete,
    KvGet,
    KvKeys,
    KvPut,
    QueueAck,
    QueueConfigure,
    QueueDead,
    QueueLag,
    QueueNack,
    QueueRemove,
    QueueRevive,
    QueueTake,
    ReadValue,
    Remove,
    Set,
    Upload,
)

_READS = (Get, GetAll, ReadValue, KvGet, KvKeys, Info, Download, FeedBootstrap, FeedResume, QueueLag, QueueDead)
_WRITES = (Set, Delete, DeleteAll, KvPut, KvCreate, KvCas, KvDelete, Batch, Upload, QueueTake, QueueAck, QueueNack)
_ADMINISTERS = (Configure, Remove, Fork, QueueConfigure, QueueRemove, QueueRevive)
RIGHT_OF: dict[type, str] = {
    **dict.fromkeys(_READS, READ),
    **dict.fromkeys(_WRITES, WRITE),
    **dict.fromkeys(_ADMINISTERS, ADMINISTER),
}
SERIES = frozenset({GetAll, KvKeys, Download, FeedBootstrap, FeedResume})  # these have many answers
SIMPLE = {  # by right: what needs no look at anything but the request's own name
    right: frozenset(kind for kind, needed in RIGHT_OF.items() if needed == right and kind is not Batch)
    for right in (READ, WRITE, ADMINISTER)
}


def check(place: Place, call: Call, shards: int) -> Failure | None:
    """Return why a request may not be done, or None if it may: name and right are what the subject says."""
    request = call.request
    if request.stream != place.name or RIGHT_OF[type(request)] != place.right:
        return Failure(ErrorCode.DENIED, "the request is not what its subject says")
    if isinstance(request, Batch) and any(write.stream != place.name for write in request.writes):
        return Failure(ErrorCode.DENIED, "a write of the batch is to another name than its subject's")
    if place.shard >= shards or shard_of_name(place.name, shards) != place.shard:
        return Failure(ErrorCode.WRONG_SHARD, f"{place.name} is not of shard {place.shard} of {shards}")
    return None
