"""What each change makes of a board: pure functions, for stores that keep the board whole.

A rule returns the board itself if nothing has to change, and raises if the change may not be.
"""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from everlog.ownership.ports import COORDINATOR, NOBODY, Board, Claim, Member, Overruled


def join(board: Board, name: str, address: str, token: str) -> Board:
    """Add an incarnation of a server, whose earlier ones end."""
    if any(member.token == token for member in board.members.values()):
        return board
    for member in list(board.members.values()):
        if member.name == name:
            board = end(board, member.incarnation)
    number = board.incarnations + 1
    members = board.members | {number: Member(number, name, address, token)}
    return replace(board, incarnations=number, members=members)


def end(board: Board, incarnation: int) -> Board:
    """End an incarnation with all that it owns; epochs stay."""
    if incarnation not in board.members:
        return board
    members = {number: member for number, member in board.members.items() if number != incarnation}
    claims = {
        thing: replace(claim, owner=NOBODY) if claim.owner == incarnation else claim
        for thing, claim in board.claims.items()
    }
    return replace(board, members=members, claims=claims)


def drain(board: Board, incarnation: int) -> Board:
    """Mark an incarnation as one that gives away what it owns."""
    member = living(board, incarnation)
    if member.draining:
        return board
    return replace(board, members=board.members | {incarnation: replace(member, draining=True)})


def claim(board: Board, things: Collection[str], incarnation: int) -> Board:
    """Make an incarnation the owner of those things that nobody owns, at their next epochs."""
    living(board, incarnation)
    held = {thing: board.claims.get(thing, Claim(NOBODY, 0)) for thing in things}
    taken = {thing: Claim(incarnation, one.epoch + 1) for thing, one in held.items() if one.owner == NOBODY}
    return replace(board, claims=board.claims | taken) if taken else board


def release(board: Board, things: Collection[str], incarnation: int) -> Board:
    """Leave things without an owner that an incarnation owns; their epochs stay."""
    free = {
        thing: replace(board.claims[thing], owner=NOBODY)
        for thing in things
        if thing in board.claims and board.claims[thing].owner == incarnation
    }
    return replace(board, claims=board.claims | free) if free else board


def epochs_of(board: Board, things: Collection[str], incarnation: int) -> dict[str, int]:
    """Return the epochs of those things that an incarnation owns."""
    owned = board.owned_by(incarnation)
    return {thing: owned[thing] for thing in things if thing in owned}


def place(board: Board, placement: Mapping[str, str], epoch: int) -> Board:
    """Store where things should be, if the coordinator of this epoch still is the coordinator."""
    held = board.claims.get(COORDINATOR)
    if held is None or held.owner == NOBODY or held.epoch != epoch:
        raise Overruled(f"the coordinator of epoch {epoch} has been replaced", hint="claim the role again")
    return board if board.placement == placement else replace(board, placement=dict(placement))


def living(board: Board, incarnation: int) -> Member:
    """Return a member; raise `Overruled` if the incarnation is dead."""
    member = board.members.get(incarnation)
    if member is None:
        raise Overruled(f"incarnation {incarnation} was declared dead or replaced", hint="join again")
    return member
