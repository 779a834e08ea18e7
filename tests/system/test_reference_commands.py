"""The commands that the reference shows are run as they stand there, one page after the other, against one broker.

Those that need a cluster, a bucket or NATS are run by `test_howto_pages.py` and `tests/crash/test_cluster_commands.py`.
"""

from pathlib import Path

import pytest
from tests.system.terminal import Terminal, blocks, can_have_networks, commands

REFERENCE = Path(__file__).parents[2] / "docs/reference"
OTHER_SERVERS = ("s3://", "postgresql://", "nats://")
BEFORE = {  # what a command needs that the page speaks of and does not make
    "sensor-reader": "sensor-reader() { seq 3; }",
    "--to-broker": "everlog pub -q 1 -t orders/1 -m one",
    "sessions list": "everlog sub -i pump-7 -c -t 'plant/#' -q 1 -E",
    "--data DATA_DIR": "everlog sub -i pump-7 -c -t 'plant/#' -q 1 -E; kill %1; wait %1; true",
    "log topics": "everlog serve & until everlog pub -q 1 -t plant/1/temp -m 7 2>/dev/null; do sleep 0.1; done",
}
SAYS = {
    "pub -t home/door": "",
    "replay --from -1h": "sensors/raw 3",
    "stream append": "1",
    "stream list": "",
    "kv put settings color blue": "1",
    "kv put settings color red": "2",
    "sessions list": "pump-7",
    "sessions show": "plant/#",
    "log segments": "records",
    "log topics": "plant/1/temp",
    "log dump": '"topic":"plant/1/temp"',
}
LASTING = ("watch", "tail", "sub")  # commands that go on until they are ended
PRINT_SOON = {
    "sub -t 'home/#'": "home/door open",
    "--from -24h": "2",
    "stream watch": "buy milk",
    "kv watch": "red",
    "log tail": "plant/1/temp 7",
    "$SYS": "clients/connected",
}


def shown() -> list[str]:
    pages = [(REFERENCE / name).read_text() for name in ("cli.md", "sys-topics.md")]
    found = [(kind, block) for page in pages for kind, block in blocks(page) if kind in ("sh", "console")]
    lines = [line for kind, block in found for line, _ in commands(kind, block)]
    return [line for line in lines if not any(one in line for one in OTHER_SERVERS)]


def of(table: dict[str, str], line: str) -> str:
    return next((text for part, text in table.items() if part in line), "")


@pytest.mark.slow
@pytest.mark.skipif(not can_have_networks(), reason="no network of its own for the test")
def test_the_commands_of_the_reference_do_what_it_says(tmp_path: Path) -> None:
    followed = 0
    with Terminal(tmp_path) as terminal:
        terminal.follow("everlog serve", [])
        terminal.follow("everlog serve --port 2883 --data other --http-port none", [])
        for line in shown():
            if before := of(BEFORE, line):
                terminal.type(before)
            words = line.replace("DATA_DIR", "everlog-data").split()
            line = " ".join(words)
            if "-C" in words:  # it ends when ten have come
                terminal.type(
                    f"{line} > ten & until test $(wc -l < ten) = 10; do seq 3 | everlog pub -t sensors/raw -l; done"
                )
            elif any(word in words for word in LASTING) and "drop" not in words:
                terminal.follow(line + " &", [one] if (one := of(PRINT_SOON, line)) else [])
            else:
                assert of(SAYS, line) in terminal.type(line), line
            followed += 1
    assert followed == 25
