"""Where things should be: a pure, sticky, balanced plan, and what a server has to do to get there."""

from collections.abc import Iterable, Mapping

from everlog.ownership.ports import NOBODY, Board


def plan_placement(things: Iterable[str], servers: Iterable[str], current: Mapping[str, str]) -> dict[str, str]:
    """Return which server each thing should be on: as even as can be, with as few moves as that allows.

    Nothing is placed if there is no server. The same arguments give the same plan on every machine.
    """
    names, all_things = sorted(set(servers)), sorted(set(things))
    if not names:
        return {}
    held: dict[str, list[str]] = {name: [] for name in names}
    homeless: list[str] = []
    for thing in all_things:
        held.get(current.get(thing, ""), homeless).append(thing)
    least, more = divmod(len(all_things), len(names))
    # Who has the most may keep one more than the others: that moves the fewest.
    by_size = sorted(names, key=lambda name: (-len(held[name]), name))
    quota = {name: least + (rank < more) for rank, name in enumerate(by_size)}
    for name in names:
        homeless += held[name][quota[name] :]
        del held[name][quota[name] :]
    homeless.sort()
    for name in reversed(by_size):
        while len(held[name]) < quota[name]:
            held[name].append(homeless.pop(0))
    return {thing: name for name in names for thing in held[name]}


def servers_of(board: Board) -> list[str]:
    """Return the servers that may be given things."""
    return sorted(member.name for member in board.members.values() if not member.draining)


def things_to_claim(board: Board, incarnation: int) -> list[str]:
    """Return the things that are placed on a server and that nobody owns."""
    name = board.members[incarnation].name
    return sorted(
        thing
        for thing, server in board.placement.items()
        if server == name and (thing not in board.claims or board.claims[thing].owner == NOBODY)
    )


def things_to_release(board: Board, incarnation: int) -> list[str]:
    """Return the things that a server owns and that are placed on another living server."""
    name = board.members[incarnation].name
    alive = {member.name for member in board.members.values()}
    return sorted(
        thing
        for thing in board.owned_by(incarnation)
        if thing in board.placement and board.placement[thing] != name and board.placement[thing] in alive
    )
