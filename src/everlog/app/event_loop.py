"""The event loop of a server."""

import asyncio


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop of a server, or None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # not on every system; asyncio's own loop does the same, slower
        return None
    return uvloop.Loop
