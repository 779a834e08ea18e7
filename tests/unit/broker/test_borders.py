"""Borders that no import rule can state: who knows the whole broker, who writes a session, how long a module is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "everlog"
BROKER = sorted((SOURCE / "broker").rglob("*.py"))
WHOLE = (SOURCE / "broker" / "broker.py", SOURCE / "broker" / "__init__.py")
SESSION = SOURCE / "sessions" / "session.py"

MAX_LINES = 400
MAX_BROKER_LINES = 200
GROWN = {  # by what clusters and a million retained topics ask of them; to be split, and never to grow further
    "broker/delivery/retained_columns.py": 412,
    "broker/delivery/router.py": 478,
    "broker/registry/registry.py": 424,
}

SESSIONS = ("session", "publisher")  # what a session is called, or what ends in `_session`
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "clear",
    "difference_update",
    "discard",
    "drop_duplicates",  # of received ids
    "extend",
    "extendleft",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "reverse",
    "rotate",
    "setdefault",
    "sort",
    "update",
    # of the window
    "acked",
    "forget",
    "release",
    "restore",
    "sent",
    "take_back",
    "untag",
}


def name_of(node: ast.expr) -> str:
    """The last name of a name or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_session(node: ast.expr) -> bool:
    name = name_of(node)
    return name in SESSIONS or name.endswith("_session")


def is_part_of_a_session(node: ast.expr, parts: set[str]) -> bool:
    """Whether it is `session.x`, something in that, or a name that stands for such a part."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id in parts
    return isinstance(node, ast.Attribute) and (is_session(node.value) or is_part_of_a_session(node.value, parts))


def assigned(node: ast.AST) -> list[ast.expr]:
    """What a statement writes to, or deletes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            found = [target]
        case ast.With(items=items):
            found = [item.optional_vars for item in items if item.optional_vars is not None]
        case _:
            return []
    while any(isinstance(one, ast.Tuple | ast.List) for one in found):
        found = [each for one in found for each in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]
    return found


def pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The names and values of an assignment, those of `a, b = c, d` one by one."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def writes_to_sessions(tree: ast.Module) -> Iterator[int]:
    """The lines that change a session other than by a method of its own.

    `waiting = session.queue` makes `waiting` a part of a session in its function.
    """
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in scopes or [tree]:
        parts = {
            name.id
            for node in ast.walk(scope)
            for name, value in pairs(node)
            if isinstance(name, ast.Name) and isinstance(value, ast.Attribute) and is_session(value.value)
        }
        for node in ast.walk(scope):
            for target in assigned(node):
                if not isinstance(target, ast.Name) and is_part_of_a_session(target, parts):
                    yield target.lineno
            match node:
                case ast.Call(func=ast.Attribute(value=part, attr=method)) if method in MUTATORS:
                    if is_part_of_a_session(part, parts):
                        yield node.lineno
                case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[one, *_]) if is_session(one):
                    yield node.lineno


def knows_the_broker(tree: ast.Module) -> Iterator[int]:
    """The lines that import the broker, or have something called or said to be it."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names):
                if (module or "").endswith(".broker.broker") or any(one.name == "Broker" for one in names):
                    yield node.lineno
            case ast.Import(names=names):
                if any(one.name.endswith(".broker.broker") for one in names):
                    yield node.lineno
            case ast.arg(arg=name) if name in ("broker", "_broker"):
                yield node.lineno
            case ast.Attribute(attr=name) if name in ("broker", "_broker", "Broker"):
                yield node.lineno
            case ast.Name(id="Broker" | "broker" | "_broker"):
                yield node.lineno
            case ast.Constant(value="Broker"):  # an annotation in quotes
                yield node.lineno


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def places(path: Path, lines: Iterator[int]) -> list[str]:
    return [f"{path.relative_to(SOURCE)}:{line}" for line in sorted(set(lines))]


def test_nothing_in_the_broker_is_imported_for_its_type_alone() -> None:
    assert [str(path) for path in BROKER if "TYPE_CHECKING" in path.read_text()] == []


def test_no_part_of_the_broker_knows_the_broker() -> None:
    found = [place for path in BROKER if path not in WHOLE for place in places(path, knows_the_broker(parsed(path)))]
    assert found == []


def test_a_session_is_written_by_its_own_methods_alone() -> None:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path != SESSION]
    found = [place for path in paths for place in places(path, writes_to_sessions(parsed(path)))]
    assert found == []


def test_modules_of_the_broker_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in BROKER}
    assert lines[WHOLE[0]] <= MAX_BROKER_LINES
    long = {str(path.relative_to(SOURCE)): count for path, count in lines.items()}
    assert {name: count for name, count in long.items() if count > GROWN.get(name, MAX_LINES)} == {}


@pytest.mark.parametrize(
    "text",
    [
        "session.ready = True",
        "self.session.ready = True",
        "member.session.lag[0] = 5",
        "session.lag[0] += 5",
        "session.a, x = 1, 2",
        "x, (session.a, y) = 1, (2, 3)",
        "session.counters.sent += 1",
        "session.name: int = 5",
        "for session.place in range(5): pass",
        "del session.lag[0]",
        "del publisher.name",
        "session.unsure.append(5)",
        "out.merged.session.subscriptions.pop('a')",
        "session.queues[0].clear()",
        "session.window.forget(5)",
        "self.session.window.acked(run)",
        "publisher.received.drop_duplicates(run)",
        "window = session.window\n    window.sent()",
        "a, lag = 5, session.lag\n    lag[0] = 5",
        "received = self.session.received\n    received.discard(ids)",
        "setattr(session, 'name', 5)",
    ],
)
def test_a_write_to_a_session_is_seen(text: str) -> None:
    assert list(writes_to_sessions(ast.parse(f"def f():\n    {text}")))


@pytest.mark.parametrize(
    "text",
    [
        "session.set_ready(True)",
        "session.acked(run)",
        "self.session = session",
        "sessions[session.client_id] = session",
        "self.moved.add(session)",
        "self.sinks.pop(session, None)",
        "x = session.lag.get(0)",
        "session.window.room()",
        "window = session.window\n    window.state(5)",
        "lag = dict(session.lag)\n    lag[0] = 5",
    ],
)
def test_a_method_of_its_own_and_a_look_are_no_writes(text: str) -> None:
    assert list(writes_to_sessions(ast.parse(f"def f():\n    {text}"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from everlog.broker.broker import Broker",
        "from everlog.broker import Broker",
        "import everlog.broker.broker",
        "def f(broker): pass",
        "def f(it: 'Broker'): pass",
        "class A:\n    def __init__(self, it):\n        self._broker = it",
        "class A:\n    broker: int",
    ],
)
def test_who_knows_the_broker_is_seen(text: str) -> None:
    assert list(knows_the_broker(ast.parse(text)))
