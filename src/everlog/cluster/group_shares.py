"""How many shared groups each broker deals for, and which are to move so that all deal for about as many.

Each broker reads the same counts and makes the same plan; whoever gets groups by it asks for them. Nobody takes any.
"""

from collections.abc import Mapping


def plan_moves(counts: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """Return how many groups move, by who deals for them and who is to; none if all have as many, or one more."""
    if not counts:
        return {}
    share, odd = divmod(sum(counts.values()), len(counts))
    most_first = sorted(counts, key=lambda one: (-counts[one], one))
    fair = {one: share + (place < odd) for place, one in enumerate(most_first)}
    gives = [[one, counts[one] - fair[one]] for one in sorted(counts) if counts[one] > fair[one]]
    gets = [[one, fair[one] - counts[one]] for one in sorted(counts) if counts[one] < fair[one]]
    moves: dict[tuple[int, int], int] = {}
    while gives and gets:
        giver, taker = gives[0], gets[0]
        moved = min(giver[1], taker[1])
        moves[giver[0], taker[0]] = moved
        giver[1] -= moved
        taker[1] -= moved
        gives = gives[giver[1] == 0 :]
        gets = gets[taker[1] == 0 :]
    return moves
