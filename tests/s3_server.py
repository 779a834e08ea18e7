"""An S3 server in a process of its own, which keeps to conditional puts, or does not."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "everlog-test"

SERVER = """
import sys
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

if sys.argv[1] == "careless":
    really = S3Response.put_object

    def put_object(self):
        self.headers = {name: value for name, value in self.headers.items() if name.lower() != "if-none-match"}
        return really(self)

    S3Response.put_object = put_object
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def serve(kind: str) -> Iterator[dict[str, str]]:
    """The options that reach a server with an empty bucket; it ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    endpoint = process.stdout.readline().strip()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
    try:
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.communicate("")
