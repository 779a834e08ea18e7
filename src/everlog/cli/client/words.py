"""The words of `-D COMMAND PROPERTY VALUE` as one, since options of the command line have a fixed number of them."""

from collections.abc import Sequence

JOINT = "\0"  # between the words
PAIR = "user-property"  # the property with a key and a value


def join_words(words: Sequence[str]) -> list[str]:
    """Return a command line in which the words of each `-D` are one: the option takes three or four."""
    joined: list[str] = []
    at = 0
    while at < len(words):
        count = 0
        if words[at] in ("-D", "--property"):
            count = 4 if words[at + 2 : at + 3] == [PAIR] else 3
        joined.append(words[at])
        if count:
            joined.append(JOINT.join(words[at + 1 : at + 1 + count]))
        at += 1 + count
    return joined
