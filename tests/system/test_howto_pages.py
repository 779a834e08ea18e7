"""How-tos that need other servers, or minutes, are followed to the letter; `test_newcomer.py` follows the others."""

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.listening import eventually
from tests.system.terminal import PATIENCE_S, Terminal, blocks, can_have_networks, commands

TOP = Path(__file__).parents[2]
S3_PORT = 9000

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_have_networks(), reason="no network of its own for the test"),
]


def lines(name: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a how-to with what it is said to print; names of servers are made anew each time."""
    for kind, block in blocks((TOP / "docs/howto" / name).read_text()):
        if kind in ("sh", "console", "bash"):
            for line, said in commands(kind, block):
                yield line, [re.sub(r"server-[0-9a-f]{8}", "server-…", one) for one in said]


def program(name: str, where: Path, more: str) -> str:
    """Write the Python of a how-to, and `more` behind it, to a file; return the command that runs it."""
    blocks_of = blocks((TOP / "docs/howto" / name).read_text())
    (where / "program.py").write_text("".join(block for kind, block in blocks_of if kind == "python") + more)
    return f"{sys.executable} program.py"


def end(terminal: Terminal) -> None:
    """End what was started last in the background, and wait for its end."""
    terminal.type("kill $!; wait $!; true")


def start_nats(terminal: Terminal) -> None:
    terminal.type("nats-server > nats.log 2>&1 &")
    terminal.type("until (exec 3<>/dev/tcp/127.0.0.1/4222) 2>/dev/null; do sleep 0.05; done")


def test_streams_over_nats(tmp_path: Path) -> None:
    with Terminal(tmp_path, hosts=("a", "b")) as terminal:
        for line, said in lines("streams-on-nats.md"):
            if line == "nats-server &":
                start_nats(terminal)
            else:
                terminal.follow(line, said)
        assert "buy milk" in terminal.type("everlog stream list team/to-do")
        uses = "async def main():\n    async with client:\n        print(await client.stream('team/to-do').get(1))"
        terminal.follow(program("streams-on-nats.md", tmp_path, f"import asyncio\n{uses}\nasyncio.run(main())"), [])
        assert "b'buy milk'" in (tmp_path / "printed").read_text()


STATUS = "everlog persist status --bus nats://bus:4222"


def all_own(names: list[str], terminal: Terminal) -> bool:
    """Return whether the status of persist servers has a coordinator, and shards for each of these."""
    printed = terminal.type(STATUS)
    return "coordinator" in printed and all(re.search(rf"{one}.* 8 of 16 ", printed) for one in names)


def test_several_persist_servers(tmp_path: Path) -> None:
    names: list[str] = []
    followed = 0
    with Terminal(tmp_path, hosts=("bus",), folders=("/mnt", "/var/cache")) as terminal:
        terminal.type("mkdir /mnt/shared")
        start_nats(terminal)
        for line, said in lines("several-persist-servers.md"):
            if "persist serve" in line:
                for data in ("/var/cache/everlog", "/var/cache/second"):
                    terminal.follow(line.replace("/var/cache/everlog", data), said)
                names = re.findall(r"everlog persist (server-[0-9a-f]{8}) serves", (tmp_path / "printed").read_text())
            elif "drain" in line:
                terminal.follow(re.sub(r"server-[0-9a-f]{8}", names[1], line), said[-1:])
            else:
                assert line == STATUS

                eventually(partial(all_own, names, terminal), "both own shards", PATIENCE_S)
            followed += 1
        eventually(lambda: re.search(rf"{names[0]}.* 16 of 16 ", terminal.type(STATUS)), "one owns all", PATIENCE_S)
    assert followed == 3
    assert len(names) == 2


def test_streams_in_a_bucket(tmp_path: Path) -> None:
    followed = 0
    with Terminal(tmp_path) as terminal:
        start_nats(terminal)
        terminal.type(f"{sys.executable} -m moto.server -H 127.0.0.1 -p {S3_PORT} > s3.log 2>&1 &")
        terminal.type(f"until curl -sf -X PUT http://127.0.0.1:{S3_PORT}/acme-streams > made; do sleep 0.2; done")
        terminal.type(f"export AWS_ENDPOINT_URL=http://127.0.0.1:{S3_PORT} AWS_ALLOW_HTTP=true")
        for line, said in lines("streams-in-a-bucket.md"):
            if line.startswith("pip "):
                continue  # it is installed
            if "--seq 8311" in line or "before.db" in line:
                terminal.type("rm -f before.db")
                line = line.replace("8311", "2").replace("-10m", "-0s")
            if "persist restore" in line:
                terminal.type("rm -r streams")
            if " serve " not in line:
                terminal.type(line.replace("=…", "=key"))
            elif "persist serve" in line:
                terminal.follow(line, said)
                for number in range(3):
                    bus = "--bus nats://localhost:4222 --level archived"
                    terminal.type(f"everlog stream append team/log {number} {bus}")
                end(terminal)
            else:
                terminal.follow(line, said)
                end(terminal)
            followed += 1
            if "before.db" in line:
                assert (tmp_path / "before.db").read_bytes().startswith(b"SQLite format 3")
        terminal.follow("everlog persist serve --data streams --bus nats://localhost:4222", [])
        assert terminal.type("everlog stream get team/log 3 --bus nats://localhost:4222").strip() == "2"
    assert followed == 9


def test_retention(tmp_path: Path) -> None:
    followed = 0
    with Terminal(tmp_path) as terminal:
        terminal.follow("everlog serve --data DATA_DIR", [])
        for line, said in lines("retention.md"):
            terminal.follow(line, [re.sub(r"\d\S+Z", "…", one) for one in said if "wall" in one or "accepted" in one])
            followed += 1
    assert followed == 3


def test_the_jobs_on_spark_and_the_table(tmp_path: Path) -> None:
    followed = 0
    with Terminal(tmp_path, hosts=("broker.example",), folders=("/var/lib",), patience_s=300) as terminal:
        terminal.follow("everlog serve --data DATA", [])
        for topic in ("plant/oslo/press/1", "plant/bonn/press/1"):
            numbers = 'for n in $(seq 1 20); do echo "{\\"publisher\\": \\"p\\", \\"sequence\\": $n}"; done'
            terminal.type(f"{numbers} | everlog pub -q 1 -l -t {topic}")
            row = f'{{\\"publisher\\": \\"p\\", \\"topic\\": \\"{topic}\\", \\"sequence\\": $n'
            terminal.type(f'for n in $(seq 1 20); do echo "{row}}}"; done >> published.jsonl')
            more = ', \\"subscriber\\": \\"s\\", \\"position\\": $n'
            terminal.type(f'for n in $(seq 1 20); do echo "{row}{more}}}"; done >> delivered.jsonl')
        for line, _ in [*lines("spark-jobs.md"), *lines("compact.md")]:
            if line == "everlog spark shell DATA":
                line = "echo 'print(messages.where(\"retain\").count())' | " + line
            if "compact" in line:
                terminal.type("cp -r DATA /var/lib/everlog")
            printed = terminal.type(line)
            assert "Traceback" not in printed
            followed += 1
        show = "print(duckdb.sql(f'select count(*) from read_parquet({table.file_uris()!r})').fetchall())"
        assert "(40,)" in terminal.type(program("compact.md", tmp_path, show))
        assert "20" in terminal.type("everlog sub -t 'replay/#' --from earliest -C 20 | wc -l")
    assert followed == 9


def test_benchmarks(tmp_path: Path) -> None:
    """What is compared with is the checkout that is installed: another would take minutes to build."""
    (tmp_path / "here").mkdir()
    (tmp_path / "before").symlink_to(Path(sys.prefix).resolve().parent)
    followed = 0
    with Terminal(tmp_path / "here", patience_s=600) as terminal:
        for line, said in lines("benchmark.md"):
            if line.startswith("git "):
                continue
            line = line.replace("/tmp/data", "data")
            if " serve " in line:
                terminal.follow(line, [])
            else:
                falls_short = " check " in line  # on a machine that has other work too
                printed = terminal.type(f"{line}; test $? -le 1" if falls_short else line)
                assert said[0].split()[0] in printed if said else "holds" in printed or "short" in printed
            followed += 1
    assert followed == 5


def test_several_brokers(tmp_path: Path) -> None:
    """The three brokers of the page, pasted block by block; PostgreSQL is that of Debian."""
    page = (TOP / "docs/howto/several-brokers.md").read_text()
    pasted = [block for kind, block in blocks(page) if kind == "bash"]
    assert len(pasted) == 2
    with Terminal(tmp_path, is_root=False) as terminal:
        terminal.type(f"export HOME={tmp_path}")
        try:
            assert "broker-3" in terminal.type(pasted[0])
            status = "everlog cluster status $CLUSTER"
            eventually(lambda: "16 of 16 shards" in terminal.type(status), "every shard has an owner", PATIENCE_S)
            printed = terminal.type(pasted[1])
            eventually(lambda: "21.5" in (tmp_path / "printed").read_text(), "delivered", PATIENCE_S)
            assert re.search(r"broker-3 \(incarnation \d+\) hands over", printed)
            still = f"{status} || true"  # it ends with 1 while a shard is between two owners
            eventually(lambda: "broker-3" not in terminal.type(still), "the drained broker ends", PATIENCE_S)
            assert "16 of 16 shards" in terminal.type(status)  # it handed all of them over before
        finally:
            terminal.type("pg_ctl -D standby stop; pg_ctl -D primary -m fast stop")
