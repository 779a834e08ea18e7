"""How two filters stand to each other: one covers the other, or some topic matches both."""

from everlog.topics.names import Filter


def covers(wider: Filter, narrower: Filter) -> bool:
    """Return whether `wider` matches every topic that `narrower` matches."""
    wide, narrow = wider.levels, narrower.levels
    if narrow == ["#"]:
        narrow = ["+", "#"]  # the same: every topic has a first level
    if wider.starts_wild and narrow[0].startswith("$"):  # [MQTT-4.7.2-1]
        return False
    for number, level in enumerate(wide):
        if level == "#":
            return True
        if number == len(narrow) or narrow[number] == "#":
            return False
        if level not in ("+", narrow[number]):
            return False
    return len(wide) == len(narrow)


def overlap(one: Filter, other: Filter) -> bool:
    """Return whether some topic matches both filters."""
    left, right = one.levels, other.levels
    if (one.starts_wild and right[0].startswith("$")) or (other.starts_wild and left[0].startswith("$")):
        return False  # [MQTT-4.7.2-1]
    for mine, theirs in zip(left, right, strict=False):
        if "#" in (mine, theirs):
            return True
        if mine != theirs and "+" not in (mine, theirs):
            return False
    shorter, longer = sorted((left, right), key=len)
    return len(longer) == len(shorter) or longer[len(shorter)] == "#"  # a/# matches a as well
