"""Somebody who follows a page of the documentation to the letter."""

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.listening import eventually

from everlog.cli import main

PORT = "18840"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the lines of each block of code."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield found[1], found[2]


class Follower:
    """Somebody who types what the tutorial says, in a directory of their own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.port = _free_port()
        self.known: dict[str, object] = {"__name__": "__tutorial__"}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.printed = ""

    def console(self, block: str) -> None:
        printed: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                assert all(one in self.printed for one in printed), (printed, self.printed)
                printed = []
                self.command(line[2:].replace(PORT, str(self.port)))
            else:
                printed.append(line)
        assert all(one in self.printed for one in printed), (printed, self.printed)

    def command(self, words: str) -> None:
        if words.endswith("&"):
            server = subprocess.Popen(shlex.split(words[:-1]), cwd=self.where, env=self.environment())
            self.servers.append(server)
            eventually(lambda: _listens(self.port), "the broker listens", 60)
        elif words.startswith("everlog spark"):  # in the session of these tests: another takes long to start
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.chdir(self.where):
                code = main(shlex.split(words)[1:])
            self.printed = out.getvalue()
            assert code == 0, self.printed
        else:
            done = subprocess.run(
                ["bash", "-c", words],
                cwd=self.where,
                env=self.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), words
            self.printed = done.stdout

    def python(self, block: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block.replace('"data', f'"{self.where}/data'), self.known)
        self.printed = out.getvalue()

    def text(self, block: str) -> None:
        assert self.printed.strip() == block.strip()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def leave(self) -> None:
        for server in self.servers:
            server.terminate()
            assert server.wait(30) == 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
