"""The subscription trie: who subscribed to a topic.

Filters without wildcards, the most common, are one dictionary; only those with wildcards are nodes. A node is reached
by one path only, so a match visits no node twice: its cost is bounded by the wildcard filters that share a prefix with
the topic, never by 2**levels. Nothing recurses, so depth costs no stack. Many keys on one filter are a dictionary, a
lone key is held bare. Owned by one thread.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from everlog.topics.names import Filter

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Subscription(Struct, Generic[K, V], frozen=True):
    """One key's subscription to one filter; a shared one has a `filter.group`."""

    filter: Filter
    key: K
    value: V


# Invariant: None is nobody, a bare Subscription is exactly one; a dictionary is never empty. A group's subscription
# and a plain one of the same key to the same pattern are two.
_Bucket = Subscription[Any, Any] | dict[tuple[str | None, Any], Subscription[Any, Any]] | None


class Node:
    """A level of wildcard filters; a lone literal child is held without a dictionary, as most nodes have one."""

    __slots__ = ("child", "children", "here", "multi", "plus", "token")

    def __init__(self) -> None:
        self.token: str | None = None  # of the lone child
        self.child: Node | None = None
        self.children: dict[str, Node] | None = None  # when there are several
        self.plus: Node | None = None
        self.here: _Bucket = None  # filters that end here
        self.multi: _Bucket = None  # filters that end here with /#

    def get(self, token: str) -> "Node | None":
        """Return the node that `token`, a literal or `+`, leads to."""
        if token == "+":
            return self.plus
        if self.children is not None:
            return self.children.get(token)
        return self.child if token == self.token else None

    def grow(self, token: str) -> "Node":
        """Add a node that `token` leads to, and return it."""
        node = Node()
        if token == "+":
            self.plus = node
        elif self.children is not None:
            self.children[token] = node
        elif self.token is None or self.child is None:
            self.token, self.child = token, node
        else:
            self.children = {self.token: self.child, token: node}
            self.token = self.child = None
        return node

    def cut(self, token: str) -> None:
        """Remove the node that `token` leads to."""
        if token == "+":
            self.plus = None
        elif self.children is None:
            self.token = self.child = None
        else:
            del self.children[token]
            if not self.children:
                self.children = None

    def is_bare(self) -> bool:
        """Return whether nothing depends on this node, so that it can go."""
        return not (self.here or self.multi or self.plus or self.child or self.children)


class SubscriptionTrie(Generic[K, V]):
    """Subscriptions by filter and key; `len()` is their number."""

    def __init__(self) -> None:
        self._exact: dict[str, _Bucket] = {}
        self._root = Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, flt: Filter, key: K, value: V) -> Subscription[K, V] | None:
        """Subscribe `key` to `flt` and return the subscription that this one replaces, if any."""
        new = Subscription(flt, key, value)
        if flt.is_exact:
            self._exact[flt.pattern], old = _put(self._exact.get(flt.pattern), new)
        else:
            levels, is_open = flt.levels, flt.ends_open
            if is_open:
                levels.pop()
            node = self._root
            for token in levels:
                node = node.get(token) or node.grow(token)
            if is_open:
                node.multi, old = _put(node.multi, new)
            else:
                node.here, old = _put(node.here, new)
        self._count += old is None
        return old

    def remove(self, flt: Filter, key: K) -> Subscription[K, V] | None:
        """Unsubscribe `key` from `flt` and return what was removed, if anything."""
        old = self._remove_exact(flt, key) if flt.is_exact else self._remove_wild(flt, key)
        self._count -= old is not None
        return old

    def insert_exact(self, filters: list[Filter], key: K, values: list[V]) -> None:
        """Subscribe `key` to filters without wildcards that are no groups', each with the value at its place."""
        self._count += _put_exact(self._exact, filters, key, values)

    def remove_exact(self, texts: list[str], key: K) -> list[str]:
        """Unsubscribe `key` from those filters that have no wildcards and are no groups'; return the others."""
        others = _take_exact(self._exact, texts, key)
        self._count -= len(texts) - len(others)
        return others

    def match(self, topic: str) -> list[Subscription[K, V]]:
        """Return every subscription to every filter that matches `topic`, in no promised order."""
        found: list[Subscription[K, V]] = []
        _collect(self._exact.get(topic), found)
        root = self._root
        levels = topic.split("/")
        if topic.startswith("$"):  # [MQTT-4.7.2-1] a leading wildcard does not match $ topics
            first = root.get(levels[0])
            frontier: list[Node] = [first] if first is not None else []
            rest = levels[1:]
        else:
            frontier, rest = [root], levels
        for level in rest:
            if not frontier:
                return found
            reached: list[Node] = []
            for node in frontier:
                if node.multi is not None:
                    _collect(node.multi, found)
                child = node.children.get(level) if node.children is not None else node.child
                if child is not None and (node.children is not None or node.token == level):
                    reached.append(child)
                if node.plus is not None:
                    reached.append(node.plus)
            frontier = reached
        for node in frontier:
            if node.here is not None:
                _collect(node.here, found)
            if node.multi is not None:
                _collect(node.multi, found)  # a/# matches its parent a too
        return found

    def _remove_exact(self, flt: Filter, key: K) -> Subscription[K, V] | None:
        bucket, old = _take(self._exact.get(flt.pattern), flt, key)
        if old is not None and bucket is None:
            del self._exact[flt.pattern]
        return old

    def _remove_wild(self, flt: Filter, key: K) -> Subscription[K, V] | None:
        path: list[tuple[Node, str]] = []
        node = self._root
        levels, is_open = flt.levels, flt.ends_open
        if is_open:
            levels.pop()
        for token in levels:
            child = node.get(token)
            if child is None:
                return None
            path.append((node, token))
            node = child
        if is_open:
            node.multi, old = _take(node.multi, flt, key)
        else:
            node.here, old = _take(node.here, flt, key)
        while path and node.is_bare():
            node, token = path.pop()
            node.cut(token)
        return old


def _put(bucket: _Bucket, new: Subscription[Any, Any]) -> tuple[_Bucket, Subscription[Any, Any] | None]:
    if bucket is None:
        return new, None
    slot = (new.filter.group, new.key)
    if isinstance(bucket, Subscription):
        if (bucket.filter.group, bucket.key) == slot:
            return new, bucket
        bucket = {(bucket.filter.group, bucket.key): bucket}
    old = bucket.get(slot)
    bucket[slot] = new
    return bucket, old


def _put_exact(exact: dict[str, _Bucket], filters: list[Filter], key: Any, values: list[Any]) -> int:
    """Put subscriptions into their buckets; return how many replaced none."""
    added = 0
    for place in range(len(filters)):
        flt = filters[place]
        new = Subscription(flt, key, values[place])
        text: str = flt.pattern
        bucket = exact.get(text)
        if bucket is None:
            exact[text] = new
            added += 1
        else:
            exact[text], old = _put(bucket, new)
            added += old is None
    return added


def _take_exact(exact: dict[str, _Bucket], texts: list[str], key: Any) -> list[str]:
    """Take the plain subscriptions of a key out of their buckets; return the filters that none was found for."""
    others: list[str] = []
    for text in texts:
        bucket = exact.get(text)
        if bucket is None:
            others.append(text)
        elif isinstance(bucket, dict):
            if bucket.pop((None, key), None) is None:
                others.append(text)
            elif not bucket:
                del exact[text]
        elif bucket.key == key and bucket.filter.group is None:
            del exact[text]
        else:
            others.append(text)
    return others


def _take(bucket: _Bucket, flt: Filter, key: Any) -> tuple[_Bucket, Subscription[Any, Any] | None]:
    if bucket is None:
        return None, None
    slot = (flt.group, key)
    if isinstance(bucket, Subscription):
        return (None, bucket) if (bucket.filter.group, bucket.key) == slot else (bucket, None)
    old = bucket.pop(slot, None)
    return bucket or None, old


def _collect(bucket: _Bucket, found: list[Any]) -> None:
    if isinstance(bucket, dict):
        found.extend(bucket.values())
    elif bucket is not None:
        found.append(bucket)
