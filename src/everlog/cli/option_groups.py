"""Options that several commands share: the parameters of a function, whose result is what the command is given."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

Command = Callable[..., int]
_NONE: Mapping[str, Any] = {}


def with_options(
    name: str, group: Callable[..., Any], *, leave_out: Collection[str] = (), instead: Mapping[str, Any] = _NONE
) -> Callable[[Command], Command]:
    """Put the parameters of `group` in the place of a command's parameter `name`, but for those left out.

    Where `instead` has another annotation for one, that says what its default is.
    """
    shared = [
        one.replace(default=one.empty, annotation=instead[one.name]) if one.name in instead else one
        for one in inspect.signature(group).parameters.values()
        if one.name not in leave_out
    ]

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> int:
            values[name] = group(**{one.name: values.pop(one.name) for one in shared})
            return command(**values)

        signature = inspect.signature(command)
        places = [shared if one.name == name else [one] for one in signature.parameters.values()]
        parameters = [one.replace(kind=one.KEYWORD_ONLY) for place in places for one in place]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
        return run

    return wrap
