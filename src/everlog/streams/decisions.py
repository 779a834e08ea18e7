"""What writes do: every condition and limit is checked on a draft, so that a refusal changes nothing."""

from everlog.streams.draft import Draft
from everlog.streams.names import MOST_KEY_BYTES
from everlog.streams.refusal import Refused
from everlog.streams.requests import Delete, DeleteAll, KvCas, KvCreate, KvDelete, KvPut, Set, Write
from everlog.streams.stream_state import StreamState
from everlog.streams.values import MOST, ErrorCode, Kind

_MOST_SEQ = MOST >> 1  # so that there is no end of seqs for those that are appended behind it
_KV_WRITES = (KvPut, KvCreate, KvCas, KvDelete)


def kind_of(write: Write) -> Kind | None:
    """Return which kind of thing a write makes if there is none; None for both."""
    if isinstance(write, _KV_WRITES):
        return Kind.KV
    return None if isinstance(write, DeleteAll) else Kind.STREAM


def check_rate(state: StreamState, writes: int, now_us: int) -> None:
    """Take from the stream's tokens, or refuse: so many writes a second, with a burst of a second."""
    rate = state.config.max_rate
    if state.tokens < 0:
        state.tokens, state.tokens_us = float(rate), now_us
    passed_us = max(0, now_us - state.tokens_us)
    state.tokens = min(float(rate), state.tokens + passed_us * rate / 1_000_000)
    state.tokens_us = now_us
    if state.tokens < writes:
        raise Refused(ErrorCode.RATE, f"{state.name} takes {rate} writes a second", hint="try again later")
    state.tokens -= writes


def decide(draft: Draft, state: StreamState, write: Write, now_us: int) -> None:
    """Add what a write does to a draft."""
    wanted = kind_of(write)
    if wanted is not None and wanted is not state.kind:
        raise Refused(ErrorCode.WRONG_KIND, f"{state.name} is a {state.kind}", hint="use another name")
    if isinstance(write, Set):
        _set(draft, state, write, now_us)
    elif isinstance(write, Delete):
        draft.delete(write.seqs)
    elif isinstance(write, DeleteAll):
        if state.kind is Kind.KV:
            if write.end_seq is not None:
                raise Refused(ErrorCode.BAD_REQUEST, "a key-value store has no seqs", hint="leave end_seq out")
            draft.delete_keys()
        else:
            draft.delete_to(draft.last_seq if write.end_seq is None else min(write.end_seq, draft.last_seq))
    elif isinstance(write, KvDelete):
        if write.revision is not None:
            _check_revision(draft, write.key, write.revision)
        draft.delete_key(write.key)
    else:
        _put(draft, state, write, now_us)


def _set(draft: Draft, state: StreamState, write: Set, now_us: int) -> None:
    if write.expected_last_seq is not None and write.expected_last_seq != draft.last_seq:
        raise Refused(
            ErrorCode.WRONG_REVISION,
            f"the last seq is {draft.last_seq}, not {write.expected_last_seq}",
            hint="read what is new, then try again",
            revision=draft.last_seq,
        )
    if write.seq is not None:
        if write.seq > _MOST_SEQ:
            raise Refused(ErrorCode.BAD_REQUEST, f"seq {write.seq} is too large", hint=f"at most {_MOST_SEQ}")
        if write.must_be_new and draft.size_at(write.seq) is not None:
            raise Refused(ErrorCode.EXISTS, f"seq {write.seq} is taken", revision=draft.last_seq)
    draft.put(write.message, write.seq, _expiry(write.ttl_us, now_us), _uploaded(state, write.upload))


def _put(draft: Draft, state: StreamState, write: KvPut | KvCreate | KvCas, now_us: int) -> None:
    if not write.key or len(write.key.encode()) > MOST_KEY_BYTES:
        raise Refused(ErrorCode.BAD_REQUEST, f"a key has 1 to {MOST_KEY_BYTES} bytes", hint="choose another key")
    if isinstance(write, KvCreate):
        found = draft.find(write.key)
        if found is not None:
            raise Refused(ErrorCode.EXISTS, f"{write.key!r} has a value", revision=found.revision)
    elif isinstance(write, KvCas):
        _check_revision(draft, write.key, write.revision)
    draft.put_key(write.key, write.message, _expiry(write.ttl_us, now_us), _uploaded(state, write.upload))


def _check_revision(draft: Draft, key: str, expected: int) -> None:
    found = draft.find(key)
    revision = 0 if found is None else found.revision
    if revision != expected:
        raise Refused(
            ErrorCode.WRONG_REVISION,
            f"{key!r} has revision {revision}, not {expected}",
            hint="read it, then try again",
            revision=revision,
        )


def _expiry(ttl_us: int, now_us: int) -> int:
    if not 0 <= ttl_us <= MOST:
        hint = f"0 for no end, else 1 to {MOST}"
        raise Refused(ErrorCode.BAD_REQUEST, f"a time to live of {ttl_us} µs", hint=hint)
    return now_us + ttl_us if ttl_us else 0


def _uploaded(state: StreamState, upload: str | None) -> tuple[str, int] | None:
    if upload is None:
        return None
    known = (state.uploads or {}).get(upload)
    if known is None:
        raise Refused(ErrorCode.NOT_FOUND, f"no upload {upload!r}", hint="upload its parts again, then write")
    return upload, known.size
