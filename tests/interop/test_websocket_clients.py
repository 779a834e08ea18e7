"""Other people's MQTT clients over WebSocket and secure WebSocket: paho-mqtt, and MQTT.js from npm."""

import json
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from tests.brokers import RunningBroker
from tests.certificates import Authority, needs_openssl
from tests.listening import eventually, opened

from everlog.broker import Address, Listener

MQTT_JS = "mqtt@5.14.1"
SCRIPT = """
const mqtt = require('mqtt');
const [url, version, qos, ca] = process.argv.slice(2);
const options = {protocolVersion: Number(version), connectTimeout: 20000, reconnectPeriod: 0};
if (ca) options.ca = [require('fs').readFileSync(ca)];
const client = mqtt.connect(url, options);
const big = Buffer.alloc(200000, 'x');
const sizes = [];
client.on('error', error => { console.error(error); process.exit(1); });
client.on('connect', () => client.subscribe('js/#', {qos: Number(qos)}, (error, granted) => {
  if (error) { console.error(error); process.exit(1); }
  for (let i = 0; i < 50; i++) client.publish('js/t', 'm' + i, {qos: Number(qos)});
  client.publish('js/big', big, {qos: Number(qos)});
}));
client.on('message', (topic, payload) => {
  sizes.push(topic === 'js/big' ? payload.length : payload.toString());
  if (sizes.length === 51) client.end(false, {}, () => console.log(JSON.stringify(sizes)));
});
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(params=["ws", pytest.param("wss", marks=needs_openssl)])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[Address, str | None]]:
    """Where a broker listens, and whom to trust."""
    listener, trusted = Listener("127.0.0.1", 0, "ws"), None
    if request.param == "wss":
        authority = request.getfixturevalue("authority")
        server, trusted = authority.issue("server"), authority.cert
        listener = Listener("127.0.0.1", 0, "wss", cert_file=server.cert, key_file=server.key)
    with RunningBroker() as running, opened(running, listener) as listening:
        yield listening.addresses()[0], trusted


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho(address: tuple[Address, str | None], version: paho.MQTTProtocolVersion, qos: int) -> None:
    where, trusted = address
    got: list[bytes] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho", protocol=version, transport="websockets")
    client.ws_set_options(path="/mqtt")
    if trusted is not None:
        client.tls_set_context(ssl.create_default_context(cafile=trusted))
    sent = [b"m%d" % i for i in range(50)] + [b"x" * 200_000]

    def publish(*_: object) -> None:
        for payload in sent:
            client.publish("paho/t", payload, qos)

    client.on_connect = lambda *_: client.subscribe("paho/#", qos)
    client.on_subscribe = publish
    client.on_message = lambda _c, _u, message: got.append(message.payload)
    client.connect("localhost", where.port)
    client.loop_start()
    eventually(lambda: len(got) == len(sent), "all messages came back")
    client.disconnect()
    client.loop_stop()
    assert got == sent


@pytest.fixture(scope="session")
def mqtt_js() -> Path:
    """A directory with MQTT.js in it, kept between runs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = Path(tempfile.gettempdir()) / f"everlog-npm-{MQTT_JS}"
    if not (directory / "node_modules" / "mqtt" / "package.json").exists():
        directory.mkdir(exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), MQTT_JS]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        if done.returncode:
            pytest.skip(f"npm could not install {MQTT_JS}: {done.stderr[-500:]}")
    (directory / "roundtrip.js").write_text(SCRIPT)
    return directory


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_js(address: tuple[Address, str | None], mqtt_js: Path, version: int, qos: int) -> None:
    where, trusted = address
    url = f"{where.kind}://localhost:{where.port}/mqtt"
    command = ["node", str(mqtt_js / "roundtrip.js"), url, str(version), str(qos), *([trusted] if trusted else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [*(f"m{i}" for i in range(50)), 200_000]
