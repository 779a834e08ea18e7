"""A shell in a network of its own, where a newcomer types what a page says: all ports are free there."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from tests.listening import eventually

PATIENCE_S = 120.0  # for what a busy machine does at once otherwise
_LO_UP = """
import fcntl, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
"""
_TYPED = """
import os, pty, sys, termios, time
secret, *command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
seen = b""
for prompt in (b"Password:", b"Repeat for confirmation:"):
    while prompt not in seen:
        seen += os.read(terminal, 1024)
    while termios.tcgetattr(terminal)[3] & termios.ECHO:
        time.sleep(0.01)  # it forgets what is typed before it hides that
    os.write(terminal, secret.encode() + b"\\n")
try:
    while chunk := os.read(terminal, 1024):
        seen += chunk
except OSError:
    pass  # it has ended
sys.stdout.buffer.write(seen.replace(b"\\r", b""))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def can_have_networks() -> bool:
    """Whether this user may have a network of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind and the lines of each block of code of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(kind: str, block: str) -> list[tuple[str, list[str]]]:
    """The commands of a block, each with what the page says that it prints."""
    if kind == "sh":
        whole = block.replace("\\\n", " ").splitlines()
        return [(line.partition("  #")[0].strip(), []) for line in whole if line.strip()]
    steps: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:].partition("  #")[0].strip(), []))
        elif steps:
            steps[-1][1].append(line)
    return steps


class Terminal:
    """One shell; `type` runs a command line and returns what it printed.

    `hosts` are names of this machine there, `folders` are empty ones; unless it `is_root`, the shell is somebody's
    whom PostgreSQL serves.
    """

    def __init__(
        self,
        where: Path,
        hosts: Sequence[str] = (),
        folders: Sequence[str] = (),
        is_root: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._where = where
        self._patience_s = patience_s
        self._hosts, self._folders, self._is_root = hosts, folders, is_root
        self._file = where / "printed"
        self._count = 0
        (where / ".venv/bin").mkdir(parents=True)
        for name, text in (("everlog", f'#!/bin/sh\nexec {sys.executable} -m everlog "$@"\n'),):
            (where / ".venv/bin" / name).write_text(text)
            (where / ".venv/bin" / name).chmod(0o755)
        (where / ".venv/typed.py").write_text(_TYPED)

    def __enter__(self) -> "Terminal":
        user = ["-r"] if self._is_root else ["-U", "--map-user=1000", "--keep-caps"]
        with self._file.open("wb") as out:
            self._shell = subprocess.Popen(
                ["unshare", *user, "-nm", "bash", "--norc"],
                cwd=self._where,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )
        self.type(f"set -m; PATH=$PWD/.venv/bin:$PATH; {sys.executable} -c '{_LO_UP}'")
        if self._hosts:
            (self._where / ".venv/hosts").write_text(f"127.0.0.1 localhost {' '.join(self._hosts)}\n")
            self.type("mount --bind .venv/hosts /etc/hosts")
        for folder in self._folders:
            self.type(f"mount -t tmpfs none {folder}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            print(self._file.read_text())
        self._write("kill -9 $(jobs -p) 2>/dev/null; exit")
        self._shell.communicate(timeout=self._patience_s)

    def type(self, line: str, fails: bool = False) -> str:
        """Type a line and return what it printed."""
        self._count += 1
        before = len(self._file.read_text())
        self._write(f"{line}\necho end-{self._count}-$?-")
        ended = eventually(
            lambda: re.search(rf"end-{self._count}-(\d+)-", self._file.read_text()), line, self._patience_s
        )
        printed = self._file.read_text()[before : ended.start()]
        assert (ended[1] != "0") == fails, f"{line} ends with {ended[1]}: {printed}"
        return printed

    def follow(self, line: str, said: list[str]) -> None:
        """Type a line of a page as a newcomer would, and see that it prints what the page says."""
        words = line.split()
        before = len(self._file.read_text())
        if words[:1] == ["make"]:
            words, line = ["everlog", "serve"], "everlog serve"  # what it installs is installed
        fails = any(one.startswith("everlog: ") for one in said)
        serves = any(word.endswith("everlog") for word in words) and "serve" in words and not fails
        stays = "sub" in words and "-C" not in words
        if serves or stays or line.endswith("&"):
            self.type(f"{line.rstrip('& ')} &")
            if serves and "persist" in words:
                eventually(lambda: " serves " in self._file.read_text()[before:], line, self._patience_s)
            elif serves:
                self._await_port(words)
            elif "sub" in words and "--from" not in words:
                self._until("curl -s http://127.0.0.1:9001/metrics | grep -q '^everlog_subscriptions_live [1-9]'")
        elif "passwd" in words and "--password-stdin" not in words:
            self.type(f"{sys.executable} .venv/typed.py wonder {line}")
        else:
            self.type(line, fails)
        for one in said:
            pattern = r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in one.split())
            eventually(
                lambda pattern=pattern: re.search(pattern, self._file.read_text()[before:]), one, self._patience_s
            )  # type: ignore[misc]

    def _await_port(self, words: list[str]) -> None:
        given = {name: value for name, value in pairwise(words) if name.endswith("port")}
        settings = self._where / "everlog.toml"
        known = re.search(r"^port = (\d+)", settings.read_text(), re.MULTILINE) if settings.exists() else None
        port = given.get("--port", known[1] if known else "1883")
        port = given["--tls-port"] if port == "none" else port
        self._until(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null")

    def _until(self, condition: str) -> None:
        self.type(f"until {condition}; do sleep 0.02; done")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{text}\n".encode())
        self._shell.stdin.flush()
