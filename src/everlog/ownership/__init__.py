"""ownership: incarnations that join, beat and die; epochs of what they own; who should own what."""

from everlog.ownership.ledger import LedgerOwnership
from everlog.ownership.membership import Membership
from everlog.ownership.memory import MemoryOwnership
from everlog.ownership.placement import plan_placement, servers_of, things_to_claim, things_to_release
from everlog.ownership.ports import (
    COORDINATOR,
    NOBODY,
    Board,
    Claim,
    Member,
    Overruled,
    Ownership,
    Replaced,
)
from everlog.ownership.postgres import PostgresOwnership, make_ownership_tables
from everlog.ownership.suspicion import Suspicion
