"""`everlog passwd`: the users of a password file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from everlog.base import UsageError
from everlog.broker import delete_user, set_password


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; made when missing.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="The user name.")],
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
    ] = False,
    scram: Annotated[
        bool, typer.Option("--scram", help="With an entry for SCRAM-SHA-256 too, which MQTT 5 clients may use.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Delete the user.")] = False,
) -> None:
    """Add a user to FILE, change the password of one, or delete one (-D). A running broker reads it on SIGHUP."""
    if delete:
        delete_user(file, user)
        print(f"{file}: {user} deleted")
        return
    password = _from_stdin() if password_stdin else _ask()
    is_new = set_password(file, user, password, scram=scram)
    print(f"{file}: {user} {'added' if is_new else 'changed'}")


def _from_stdin() -> bytes:
    return sys.stdin.buffer.readline().rstrip(b"\r\n")


def _ask() -> bytes:
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password", hint="use --password-stdin")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True)).encode()
