"""MQTT.js from npm over TCP, MQTT 3.1.1 and 5."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.brokers import RunningBroker

MQTT_JS = "mqtt@5.14.1"
SCRIPT = r"""
const mqtt = require('mqtt');
const [port, version] = process.argv.slice(2).map(Number);
const five = version === 5;
const keep = five ? {clean: false, properties: {sessionExpiryInterval: 100}} : {clean: false};
const out = {};
const open = (clientId, options = {}) => mqtt.connectAsync(
  `mqtt://127.0.0.1:${port}`, {clientId, protocolVersion: version, reconnectPeriod: 0, ...options});
function gather(client, count) {
  return new Promise(resolve => {
    const found = [];
    client.on('message', function take(topic, payload, packet) {
      found.push([topic, payload.length > 100 ? payload.length : payload.toString(), packet.qos, packet.retain]);
      if (found.length === count) { client.off('message', take); resolve(found); }
    });
  });
}
(async () => {
  const a = await open('a');
  for (const qos of [0, 1, 2]) {
    const all = gather(a, 100);
    await a.subscribeAsync('t/#', {qos});
    for (let i = 0; i < 100; i++) a.publish(`t/${i % 5}`, String(i), {qos});
    out['qos' + qos] = await all;
    await a.unsubscribeAsync('t/#');
  }
  await a.publishAsync('r', Buffer.alloc(1000000, 'x'), {qos: 1, retain: true});
  const retained = gather(a, 1);
  await a.subscribeAsync('r', {qos: 1});
  out.retained = await retained;

  const will = gather(a, 1);
  await a.subscribeAsync('will', {qos: 1});
  const lost = await open('lost', {will: {topic: 'will', payload: Buffer.from('gone'), qos: 1, retain: false}});
  lost.stream.destroy();
  out.will = await will;

  const first = await open('s', keep);
  await first.subscribeAsync('s', {qos: 1});
  await first.endAsync();
  for (let i = 0; i < 20; i++) await a.publishAsync('s', String(i), {qos: 1});
  const options = {clientId: 's', protocolVersion: version, reconnectPeriod: 0, ...keep};
  const second = mqtt.connect(`mqtt://127.0.0.1:${port}`, options);
  out.resumed = await gather(second, 20);
  await second.endAsync();
  await a.endAsync();
  console.log(JSON.stringify(out));
})().catch(error => { console.error(error); process.exit(1); });
"""


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
    (directory / "over_tcp.js").write_text(SCRIPT)
    return directory


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js(broker: RunningBroker, mqtt_js: Path, version: int) -> None:
    command = ["node", str(mqtt_js / "over_tcp.js"), str(broker.port), str(version)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    for qos in (0, 1, 2):
        assert out[f"qos{qos}"] == [[f"t/{i % 5}", str(i), qos, False] for i in range(100)]
    assert out["retained"] == [["r", 1_000_000, 1, True]]
    assert out["will"] == [["will", "gone", 1, False]]
    assert [payload for _, payload, _, _ in out["resumed"]] == [str(i) for i in range(20)]
