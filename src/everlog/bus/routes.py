"""Which handlers get a subject: exact patterns by a look-up, open ones by a walk that is cached."""

from collections.abc import Iterator

import cython

from everlog.bus.port import Handler

if not cython.compiled:
    from everlog.bus.delivery import Delivery

_CACHED = 100_000  # subjects whose handlers are remembered; beyond it all are forgotten


class Routes:
    """The patterns of one client, each with its handlers; owned by the event loop's thread."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Handler, ...]] = {}
        self._found: dict[str, tuple[Handler, ...]] = {}
        self._alike: dict[tuple[Handler, ...], tuple[Handler, ...]] = {}  # so that the same handlers are one tuple

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._handlers

    def add(self, pattern: str, handler: Handler) -> bool:
        """Add a handler; return whether it is the pattern's first."""
        before = self._handlers.get(pattern, ())
        self._handlers[pattern] = (*before, handler)
        self._found.clear()
        self._alike.clear()
        return not before

    def remove(self, pattern: str, handler: Handler) -> bool:
        """Remove a handler; return whether it was the pattern's last."""
        before = self._handlers.get(pattern, ())
        rest = tuple(one for one in before if one is not handler)
        if rest:
            self._handlers[pattern] = rest
        else:
            self._handlers.pop(pattern, None)
        self._found.clear()
        self._alike.clear()
        return bool(before) and not rest

    def of_pattern(self, pattern: str) -> tuple[Handler, ...]:
        """Return the handlers of a pattern."""
        return self._handlers.get(pattern, ())

    def of_subject(self, subject: str) -> tuple[Handler, ...]:
        """Return the handlers of every pattern that a subject matches."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= _CACHED:
                self._found.clear()
                self._alike.clear()
            found = tuple(
                handler
                for pattern, handlers in self._handlers.items()
                if pattern == subject or (pattern.endswith("/#") and subject.startswith(pattern.removesuffix("#")))
                for handler in handlers
            )
            found = self._alike.setdefault(found, found)
            self._found[subject] = found
        return found

    def dispatch(self, deliveries: "list[Delivery]") -> None:
        """Hand deliveries to their handlers, all of one handler together; the list is the handlers' then."""
        only = None
        for delivery in deliveries:
            handlers = self._found.get(delivery.subject)
            if handlers is None:
                handlers = self.of_subject(delivery.subject)
            if only is None:
                only = handlers
            elif handlers is not only:
                self._dispatch_mixed(deliveries)
                return
        if only is not None:
            for handler in only:
                handler(deliveries if len(only) == 1 else list(deliveries))

    def _dispatch_mixed(self, deliveries: "list[Delivery]") -> None:
        """Hand deliveries that have various handlers to them."""
        batches: dict[Handler, list[Delivery]] = {}
        for delivery in deliveries:
            for handler in self.of_subject(delivery.subject):
                batch = batches.get(handler)
                if batch is None:
                    batches[handler] = [delivery]
                else:
                    batch.append(delivery)
        for handler, batch in batches.items():
            handler(batch)


class Subscribed:
    """A subscription of a bus; `cancel` ends it."""

    def __init__(self, bus: "Unsubscriber", pattern: str, handler: Handler) -> None:
        self._bus: Unsubscriber | None = bus
        self._pattern = pattern
        self._handler = handler

    def cancel(self) -> None:
        """End the subscription; what has arrived already is still handed over."""
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.unsubscribe(self._pattern, self._handler)


class Unsubscriber:
    """What `Subscribed` asks of its bus."""

    def unsubscribe(self, pattern: str, handler: Handler) -> None:
        """Take a handler off."""
        raise NotImplementedError
