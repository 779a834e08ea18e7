import io
import json

import pytest

from everlog.base import UsageError
from everlog.cli import main
from everlog.cli.client.connect_options import NEVER, make_will, parse_target, parse_url, parse_version
from everlog.cli.client.message_format import formatter
from everlog.cli.client.sub import Printer
from everlog.mqtt import Message, Properties, Publish, Will, encode
from everlog.topics import parse_filter


def message(payload=b"hi", topic=b"a/b", qos=0, retain=False, packet_id=0, section=b"") -> Message:
    return Message(topic, payload, qos, retain, packet_id, section)


def test_the_default_is_mqtt_5_on_localhost():
    target = parse_target()
    assert (target.host, target.port, target.tls) == ("localhost", 1883, None)
    assert (target.connect.version, target.connect.clean_start, target.connect.client_id) == (5, True, "")


@pytest.mark.parametrize(("text", "number"), [("5", 5), ("mqttv5", 5), ("311", 4), ("mqttv311", 4), ("31", 3)])
def test_versions(text, number):
    assert parse_version(text) == number


def test_an_unknown_version_is_refused():
    with pytest.raises(UsageError, match="not a version of MQTT"):
        parse_version("6")


def test_a_kept_session_needs_an_id_and_does_not_expire():
    with pytest.raises(UsageError, match="needs a client id"):
        parse_target(durable=True)
    assert parse_target(durable=True, client_id="x").connect.properties.session_expiry_interval == NEVER
    assert parse_target(durable=True, client_id="x", expiry=9).connect.properties.session_expiry_interval == 9
    assert not parse_target(durable=True, client_id="x", protocol_version="311").connect.clean_start


def test_expiry_is_of_mqtt_5():
    with pytest.raises(UsageError, match="needs MQTT 5"):
        parse_target(protocol_version="311", expiry=1)


def test_tls_has_another_port():
    target = parse_target(os_certs=True)
    assert target.port == 8883
    assert target.tls is not None
    assert target.tls.check_hostname
    assert not parse_target(os_certs=True, insecure=True).tls.check_hostname


def test_a_bad_certificate_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.pem"):
        parse_target(cafile=str(tmp_path / "nowhere.pem"))


def test_a_url_says_it_all():
    target = parse_target(url="mqtt://us%40er:p%3Aw@host:99/a/+/b#c?d")
    assert (target.host, target.port, target.topic) == ("host", 99, "a/+/b#c?d")
    assert (target.connect.user_name, target.connect.password) == ("us@er", b"p:w")
    assert parse_target(url="mqtts://host/t").port == 8883


@pytest.mark.parametrize("url", ["http://host/t", "mqtt://host", "mqtt:///t", "mqtt://host:x/t", "mqtt://host/"])
def test_bad_urls_are_refused(url):
    with pytest.raises(UsageError, match="-L"):
        parse_url(url)


def test_a_will_needs_a_topic():
    assert make_will("t", "bye", 1, True) == Will("t", b"bye", 1, True)
    assert make_will(None, "", 0, False) is None
    with pytest.raises(UsageError, match="without a topic"):
        make_will(None, "bye", 0, False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("pub -t a", "no payload, or more than one"),
        ("pub -t a -m x -n", "no payload, or more than one"),
        ("pub -m x", "no topic"),
        ("pub -t a/# -m x", "wildcard"),
        ("pub -t a -m x --user-property k", "KEY=VALUE"),
        ("pub -t a -f /nowhere/x", "can't be read"),
        ("pub -t a -m x -q 3", "--qos"),
        ("sub", "no topic filter"),
        ("sub -t a/#/b", "not a topic filter"),
        ("sub -t a -T #/x", "not a topic filter"),
        ("sub -t a -F %y", "%y at 1 means nothing"),
        ("sub -t a -F 50%", "means nothing"),
    ],
)
def test_wrong_calls_say_what_is_wrong(capsys, words, complaint):
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_no_broker_is_said_in_one_line(capsys, unused_tcp_port):
    assert main(["pub", "-h", "127.0.0.1", "-p", str(unused_tcp_port), "-t", "a", "-m", "x"]) == 1
    told = f"everlog: can't connect to 127.0.0.1:{unused_tcp_port}: Connection refused (is the broker running there?)\n"
    assert capsys.readouterr().err == told


def test_plain_and_verbose_output():
    assert formatter(verbose=False, template=None, newline=True)(message()) == b"hi\n"
    assert formatter(verbose=False, template=None, newline=False)(message(b"\xff")) == b"\xff"
    assert formatter(verbose=True, template=None, newline=True)(message()) == b"a/b hi\n"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%t %p", b"a/b hi"),
        ("%x %X %l", b"6869 6869 2"),
        ("%q%r%m", b"1142"),
        (r"a\tb\\%%@@", b"a\tb\\%@"),
        ("%C|%E|%R|%P|%S|%D|%F", b"text|7|r|k:v x:y|3,4|\x01\x02|1"),
    ],
)
def test_formats(template, text):
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=7,
        content_type="text",
        response_topic="r",
        correlation_data=b"\x01\x02",
        subscription_identifiers=(3, 4),
        user_properties=(("k", "v"), ("x", "y")),
    )
    whole = encode(Publish("t", b"", properties=properties), 5)
    section = whole[2 + 3 + 1 :]
    form = formatter(verbose=False, template=template, newline=False)
    assert form(message(qos=1, retain=True, packet_id=42, section=section)) == text


def test_json_has_mosquittos_words():
    form = formatter(verbose=False, template="%j", newline=False)
    found = json.loads(form(message(b'{"x":1}', qos=1, packet_id=5)))
    del found["tst"]
    assert found == {"topic": "a/b", "qos": 1, "retain": 0, "payloadlen": 7, "mid": 5, "payload": '{"x":1}'}
    inner = formatter(verbose=False, template="%J", newline=False)
    assert json.loads(inner(message(b'{"x":1}')))["payload"] == {"x": 1}
    assert json.loads(inner(message(b"no json")))["payload"] is None


def test_times_are_written_as_asked():
    form = formatter(verbose=False, template="%I %U @Y @N", newline=False)
    iso, unix, year, nanos = form(message()).split()
    assert iso[:4] == year
    assert float(unix) > 0
    assert len(nanos) == 9


def test_no_digit_of_a_time_is_lost():
    form = formatter(verbose=False, template="%U @N %j", newline=False)
    unix, nanos, text = form(message(), 1_795_125_613_939_317_000).split()
    assert (unix, nanos) == (b"1795125613.939317000", b"939317000")
    assert ".939317" in json.loads(text)["tst"]


def printed(messages, **options) -> tuple[bytes, int, bool]:
    out = io.BytesIO()
    printer = Printer(out, formatter(verbose=False, template=None, newline=True), **options)
    return out, printer.take(messages), printer.finished


def test_a_count_takes_no_more_than_it_prints():
    out, taken, finished = printed([message(b"1"), message(b"2"), message(b"3")], count=2)
    assert (out.getvalue(), taken, finished) == (b"1\n2\n", 2, True)


def test_messages_that_are_not_wanted_are_taken_and_not_counted():
    messages = [message(b"1", retain=True), message(b"2", b"x/y"), message(b"3"), message(b"4")]
    out, taken, finished = printed(messages, count=1, no_retained=True, exclude=(parse_filter("x/#"),))
    assert (out.getvalue(), taken, finished) == (b"3\n", 3, True)


def test_retained_only_ends_at_the_first_live_message():
    out, taken, finished = printed([message(b"1", retain=True), message(b"2")], retained_only=True)
    assert (out.getvalue(), taken, finished) == (b"1\n", 1, True)
