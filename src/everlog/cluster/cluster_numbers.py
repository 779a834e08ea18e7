"""The numbers of a cluster as one of its brokers sees it, at one moment; nothing is asked of the database for them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from everlog.cluster.broker_keeper import BrokerKeeper
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.cluster_ownership import ClusterOwnership
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.forwarder import ClusterForwarder
from everlog.cluster.links import Links
from everlog.cluster.session_holding import SessionHolding
from everlog.ownership import NOBODY


@dataclass(frozen=True, slots=True)
class ShardNumbers:
    """One shard; what its owner alone knows is 0 for all others."""

    shard: int
    is_owned: bool  # by this broker
    has_owner: bool
    epoch: int
    tail_rows: int
    tail_bytes: int
    bucket_lag: int  # committed messages that are not in the bucket
    bucket_fails: bool
    waits_s: float  # for how long a commit has waited for the database
    is_in_doubt: bool
    doubts: int
    followed_lag: int  # committed messages that this broker does not have
    unconfirmed: int  # messages that this broker has forwarded, or holds for an owner
    unconfirmed_bytes: int


@dataclass(frozen=True, slots=True)
class ClusterNumbers:
    """One broker among others."""

    name: str
    incarnation: int
    is_draining: bool
    format: int  # that is written
    beat_age_s: float  # since the last beat that was stored
    brokers: int  # that live, with this one
    links_up: int
    links_down: int
    standbys: int  # on how many the last commit of this process was
    min_standbys: int
    tail_limit_bytes: int  # of each shard
    sessions_held: int
    follow_fails: bool
    shards: tuple[ShardNumbers, ...]


class ClusterCount:
    """The source of these numbers; used on the event loop's thread."""

    def __init__(
        self,
        keeper: BrokerKeeper,
        log: ClusterLog,
        links: Links,
        forwarder: ClusterForwarder,
        holding: SessionHolding,
        database: ClusterDatabase,
        ownership: ClusterOwnership,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keeper = keeper
        self._log = log
        self._links = links
        self._forwarder = forwarder
        self._holding = holding
        self._database = database
        self._ownership = ownership
        self._clock = clock

    def take(self) -> ClusterNumbers:
        """Return all numbers as they are now."""
        keeper, now = self._keeper, self._clock()
        members, up = keeper.board.members, len(self._links.living) - self._links.relayed
        return ClusterNumbers(
            name=keeper.name,
            incarnation=keeper.incarnation,
            is_draining=keeper.is_draining,
            format=self._ownership.format,
            beat_age_s=max(0.0, now - keeper.beaten_at),
            brokers=len(members),
            links_up=up,
            links_down=max(0, len(members) - 1 - up),
            standbys=self._database.standbys,
            min_standbys=self._database.min_standbys,
            tail_limit_bytes=self._log.tail_limit_bytes,
            sessions_held=len(self._holding.held),
            follow_fails=self._log.follow_trouble is not None,
            shards=tuple(self._shard(number, now) for number in range(len(self._log.cluster_shards))),
        )

    def _shard(self, number: int, now: float) -> ShardNumbers:
        shard, keeper, forwarder = self._log.cluster_shards[number], self._keeper, self._forwarder
        since = shard.waits_since
        committed = shard.log.committed
        is_owned = keeper.is_owner(number)
        target = shard.target
        listed = shard.listed_to
        return ShardNumbers(
            shard=number,
            is_owned=is_owned,
            has_owner=keeper.owner_of(number) != NOBODY,
            epoch=keeper.epoch_of(number),
            tail_rows=0 if target is None else target.held_rows,
            tail_bytes=shard.tail_bytes,
            bucket_lag=0 if listed is None else max(0, committed - listed),
            bucket_fails=shard.upload_trouble is not None,
            waits_s=0.0 if since is None else max(0.0, now - since),
            is_in_doubt=target is not None and target.is_in_doubt,
            doubts=shard.doubts,
            followed_lag=0 if is_owned else max(0, self._log.ends.get(number, 0) - committed),
            unconfirmed=forwarder.unconfirmed(number),
            unconfirmed_bytes=forwarder.pending_bytes(number),
        )
