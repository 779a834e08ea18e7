import dataclasses
import shutil
import tomllib

import msgspec
import pytest

from everlog.app import (
    BadSettings,
    Settings,
    all_keys,
    classes_of,
    groups_of,
    is_loopback,
    limits_of,
    load,
    log_arguments,
)
from everlog.app.cluster_upkeep import cluster_limits_of, look_every_s, with_shards
from everlog.app.setting_checks import covers
from everlog.app.setting_keys import LIMIT_RANGES
from everlog.app.settings import retention_bytes_of
from everlog.app.start_lines import say_kept, say_retention
from everlog.base import UsageError
from everlog.broker import GroupOptions, Limits
from everlog.commitlog import LogSettings


@pytest.fixture
def write(tmp_path):
    def write(text, name="everlog.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def problems_of(config=None, **sources) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(config, **({"environ": {}} | sources))
    return [str(problem) for problem in caught.value.problems]


def test_the_defaults_need_nothing(tmp_path):
    loaded = load(environ={}, directory=str(tmp_path))
    assert loaded.settings == Settings()
    assert loaded.config is None
    assert all(loaded.source_of(path) == "default" for path in all_keys())


def test_file_then_environment_then_flags(write):
    config = write("[listener]\nport = 1\nbacklog = 7\n[log]\ndata = '/file'\n")
    loaded = load(
        config,
        environ={"EVERLOG_LISTENER_PORT": "2", "EVERLOG_LOG_DATA": "/variable"},
        flags=[("--port", "listener.port", "3"), ("--host", "listener.host", None)],
    )
    assert loaded.settings.listener.port == 3
    assert loaded.settings.log.data == "/variable"
    assert loaded.settings.listener.backlog == 7
    assert loaded.source_of("listener.port") == "--port"
    assert loaded.source_of("log.data") == "EVERLOG_LOG_DATA"
    assert loaded.source_of("listener.backlog") == f"{config}: listener.backlog"
    assert loaded.value_of("listener.backlog") == 7


def test_the_file_in_the_working_directory_is_found(write, tmp_path):
    write("[log]\nshards = 4\n")
    assert load(environ={}, directory=str(tmp_path)).settings.log.shards == 4


def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load(str(tmp_path / "other.toml"), environ={})


def test_units_are_read_everywhere(write):
    config = write(
        '[log]\nsegment_bytes = "1GiB"\nretention_age = "7d"\n'
        '[limits]\nconnects_per_second = "60/m"\nsession_expiry_s = "1h"\nqueue_bytes = 4096\n[sys]\ninterval = 5\n'
    )
    settings = load(config, environ={"EVERLOG_LOG_TAIL_BYTES": "1MiB"}).settings
    assert settings.log.segment_bytes == 1 << 30
    assert settings.log.retention_age == 604_800
    assert settings.log.tail_bytes == 1 << 20
    assert settings.limits.connects_per_second == 1.0
    assert settings.limits.session_expiry_s == 3600
    assert isinstance(settings.limits.session_expiry_s, int)
    assert settings.limits.queue_bytes == 4096
    assert settings.sys.interval == 5.0


def test_lists_come_as_toml_commas_or_json(write):
    config = write('[keep]\nfilters = ["a/#", "b,c"]\n')
    assert load(config, environ={}).settings.keep.filters == ("a/#", "b,c")
    assert load(environ={"EVERLOG_KEEP_FILTERS": "a/#, b/+"}, directory="/").settings.keep.filters == ("a/#", "b/+")
    assert load(environ={"EVERLOG_KEEP_FILTERS": '["b,c"]'}, directory="/").settings.keep.filters == ("b,c",)
    flags = [("--keep", "keep.filters", ["x/#", "y"])]
    assert load(environ={}, flags=flags, directory="/").settings.keep.filters == ("x/#", "y")


def test_none_turns_off_what_can_be_off(write):
    config = write('[http]\nport = "none"\n[log]\nretention_age = "off"\n')
    settings = load(config, environ={}).settings
    assert settings.http.port is None
    assert settings.log.retention_age is None


def test_an_empty_variable_counts_as_unset():
    assert load(environ={"EVERLOG_LISTENER_PORT": ""}, directory="/").settings.listener.port == 1883


def test_variables_of_others_are_left_alone():
    environ = {
        "EVERLOG_PORT": "tcp://10.0.0.1:1883",
        "EVERLOG_SERVICE_HOST": "10.0.0.1",
        "EVERLOG_PURE": "1",
        "PATH": "x",
    }
    assert load(environ=environ, directory="/").settings == Settings()


def test_paths_in_a_file_start_at_the_file(write, tmp_path):
    write("everyone read #\n", "acl")
    config = write('[log]\ndata = "d"\n[security]\nacl_file = "acl"\n')
    settings = load(config, environ={}).settings
    assert settings.log.data == str(tmp_path / "d")
    assert settings.security.acl_file == str(tmp_path / "acl")
    assert load(environ={"EVERLOG_LOG_DATA": "d"}, directory="/").settings.log.data == "d"


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[listener]\nprot = 1\n", "listener.prot: no such setting", "did you mean port?"),
        ("[listner]\nport = 1\n", "listner: no such section", "did you mean [listener]?"),
        ("[listener]\nshards = 1\n", "listener.shards: no such setting", "shards belongs to [log]"),
        ("port = 1\n", "port: no such section", "port is a key of [listener]"),
        ("log = 1\n", "log: 1 is not a table", "write [log]"),
        ("[listener]\nport = '99999'\n", "listener.port: '99999' is out of range", "default is 1883"),
        ("[listener]\nport = true\n", "listener.port: True is not a whole number", ""),
        ("[listener]\nport = [1]\n", "listener.port: [1] is not a whole number", ""),
        (
            "[log]\ndurability = 'fsnc'\n",
            "log.durability: 'fsnc' is none of memory, flush, fsync",
            "did you mean fsync?",
        ),
        ("[log]\nsegment_bytes = '64M'\n", "log.segment_bytes: 'M' is not a unit of size", "MiB"),
        ("[log]\nretention_age = 'week'\n", "log.retention_age: 'week' is not a duration", "7d"),
        ("[log]\nsegment_bytes = 0\n", "log.segment_bytes: 0 is out of range", ""),
        ("[limits]\nreceive_maximum = 70000\n", "limits.receive_maximum: 70000 is out of range", ""),
        ("[limits]\nsession_expiry_s = '1500ms'\n", "limits.session_expiry_s: '1500ms' is not a whole number", ""),
        ("[limits]\ndurable_wildcard = 1\n", "limits.durable_wildcard: 1 is not true or false", ""),
        ("[keep]\nfilters = 'a/#/b'\n", "keep.filters: 'a/#/b' is not a topic filter", ""),
        ("[retention.classes]\n'a/#/b' = '7d'\n", "retention.classes: 'a/#/b' is not a topic filter", "sensors/#"),
        ("[retention.classes]\n'$share/g/a' = '7d'\n", "'$share/g/a' is not a topic filter: shared", "sensors/#"),
        ("[retention.classes]\n'a' = '-7d'\n", "retention.classes: 'a': '-7d' is not a duration", '"7d"'),
        ("[retention.classes]\n'a' = '7 moons'\n", "'a': 'moons' is not a unit of time", "use one of us, ms"),
        (
            "[retention.classes]\n'a/+' = '7d'\n'b' = '1d'\n'a/b' = '9d'\n",
            "'a/b' never counts, 'a/+'",
            "narrower first",
        ),
        ("[retention]\nawait_table = 'soon'\n", "retention.await_table: 'soon' is not true or false", ""),
        ("[retention]\nclass = 1\n", "retention.class: no such setting", "did you mean classes?"),
        ("[log]\nretention_age = '0s'\n", "log.retention_age: '0s' is out of range", ""),
        ("[log]\nretention_bytes = 0\n", "log.retention_bytes: 0 is out of range", ""),
        ("[log]\nretention_bytes = '20 gigs'\n", "log.retention_bytes: 'gigs' is not a unit of size", "GiB"),
        ("[retention.classes]\n'a/#' = 'soon'\n", "retention.classes: 'a/#': 'soon' is not a duration", '"7d"'),
        ("[retention.classes]\n'a/#' = '0s'\n", "retention.classes: 'a/#': '0s' is not an age", '"7d"'),
        ("[retention.classes]\n'a/#' = 7\n", "is not a table of texts", ""),
        ("[keep]\nfilters = [1]\n", "keep.filters: [1] is not a list of texts", ""),
        ("[keep]\nnever = ['a/#/b']\n", "keep.never: 'a/#/b' is not a topic filter", ""),
        ("[keep]\nfilters = ['$share/g/a']\n", "keep.filters: '$share/g/a' is not a topic filter", ""),
    ],
)
def test_a_bad_key_or_value_names_its_place_and_a_way_out(write, text, words, hint):
    config = write(text)
    (problem,) = problems_of(config)
    assert problem.startswith(f"{config}: ")
    assert words in problem
    assert hint in problem


def test_bad_toml_names_line_and_column(write):
    with pytest.raises(UsageError, match="line 2, column"):
        load(write("[log]\ndata = everlog\n"), environ={})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"EVERLOG_LISTNER_PORT": "1"}, "did you mean EVERLOG_LISTENER_PORT?"),
        ({"EVERLOG_LIMITS_UNICORNS": "1"}, "EVERLOG_LIMITS_UNICORNS: no such setting"),
        ({"EVERLOG_LISTENER_PORT": "x"}, "EVERLOG_LISTENER_PORT: 'x' is not a whole number"),
        ({"EVERLOG_SECURITY_ALLOW_ANONYMOUS": "maybe"}, "'maybe' is not true or false"),
        ({"EVERLOG_KEEP_FILTERS": "[oops"}, "is not a list"),
    ],
)
def test_a_bad_variable_is_named(environ, words):
    (problem,) = problems_of(environ=environ, directory="/")
    assert words in problem


def test_a_bad_flag_is_named():
    flags = [("--port", "listener.port", "x"), ("--set a.b", "a.b", "1"), ("--set log.dta", "log.dta", "1")]
    problems = problems_of(flags=flags, directory="/")
    assert [problem.split(": ")[0] for problem in problems] == ["--set a.b", "--set log.dta", "--port"]
    assert "did you mean data?" in problems[1]


def test_every_problem_is_told_at_once(write):
    config = write("[listener]\nprot = 1\n[log]\nshards = 0\n")
    assert len(problems_of(config, environ={"EVERLOG_HTTP_PORT": "x"})) == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LocalHost"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "", "example.org", "localhost.evil.org"])
def test_not_loopback(host):
    assert not is_loopback(host)


def test_other_machines_may_not_connect_without_authentication():
    (problem,) = problems_of(flags=[("--host", "listener.host", "0.0.0.0")], directory="/")
    assert problem.startswith("--host: other machines could connect")
    assert "password_file" in problem
    assert "allow_anonymous" in problem


@pytest.mark.parametrize("said", ["true", "false"])
def test_other_machines_may_connect_when_it_was_said(said):
    environ = {"EVERLOG_LISTENER_HOST": "0.0.0.0", "EVERLOG_SECURITY_ALLOW_ANONYMOUS": said}
    settings = load(environ=environ, directory="/").settings
    assert settings.allows_anonymous == (said == "true")


def test_a_password_file_closes_the_door_to_anonymous_clients(write):
    users = write("", "users")
    for host in ("0.0.0.0", "127.0.0.1"):
        environ = {"EVERLOG_LISTENER_HOST": host, "EVERLOG_SECURITY_PASSWORD_FILE": users}
        assert not load(environ=environ, directory="/").settings.allows_anonymous
    assert load(environ={}, directory="/").settings.allows_anonymous


def test_client_certificates_are_authentication_only_where_every_listener_asks_for_them(write):
    pem = write("", "pem")
    environ = {f"EVERLOG_LISTENER_{name}_FILE": pem for name in ("CERT", "KEY", "CLIENT_CA")} | {
        "EVERLOG_LISTENER_HOST": "0.0.0.0",
        "EVERLOG_LISTENER_TLS_PORT": "8883",
        "EVERLOG_LISTENER_REQUIRE_CLIENT_CERT": "true",
    }
    (problem,) = problems_of(environ=environ, directory="/")
    assert "without a password" in problem
    settings = load(environ=environ | {"EVERLOG_LISTENER_PORT": "none"}, directory="/").settings
    assert not settings.allows_anonymous


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"PORT": "none"}, "nothing to listen on"),
        ({"TLS_PORT": "8883"}, "TLS needs a certificate"),
        ({"WEBSOCKET_PORT": "1883"}, "port 1883 is also that of port"),
        ({"CERT_FILE": __file__, "KEY_FILE": __file__}, "no listener uses TLS"),
        ({"REQUIRE_CLIENT_CERT": "true"}, "no authority"),
    ],
)
def test_contradictions_are_refused(changes, words):
    environ = {f"EVERLOG_LISTENER_{name}": value for name, value in changes.items()}
    problems = problems_of(environ=environ, directory="/")
    assert any(words in problem for problem in problems), problems


def test_missing_files_are_refused(tmp_path):
    (problem,) = problems_of(environ={"EVERLOG_SECURITY_PASSWORD_FILE": str(tmp_path / "x")}, directory="/")
    assert "everlog passwd" in problem


def test_the_log_takes_the_settings_and_shares_their_defaults():
    kept = {"retention_us": 7 * 86_400_000_000, "retention_bytes": shutil.disk_usage(".").total // 10}
    assert LogSettings(**log_arguments(Settings())) == LogSettings(**kept)
    settings = load(
        environ={"EVERLOG_LOG_RETENTION_AGE": "1h", "EVERLOG_LOG_DURABILITY": "flush"}, directory="/"
    ).settings
    log = LogSettings(**log_arguments(settings))
    assert (log.retention_us, log.durability) == (3_600_000_000, "flush")


@pytest.mark.parametrize(
    ("text", "shards", "kept"),
    [("10%", 1, 1000), ("10%", 4, 250), ("0.5%", 1, 50), ("100%", 1, 10_000), ("7KB", 4, 7000), ("none", 1, None)],
)
def test_what_is_kept_may_be_a_part_of_the_disk_for_all_shards(text, shards, kept):
    environ = {"EVERLOG_LOG_RETENTION_BYTES": text, "EVERLOG_LOG_SHARDS": str(shards)}
    loaded = load(environ=environ, directory="/")
    assert retention_bytes_of(loaded.settings, 10_000) == kept
    shown = all_keys()["log.retention_bytes"].show(loaded.settings.log.retention_bytes)
    assert load(environ={**environ, "EVERLOG_LOG_RETENTION_BYTES": shown}, directory="/").settings == loaded.settings


def test_a_disk_that_tells_no_size_sets_no_limit():
    assert retention_bytes_of(Settings(), 0) is None


@pytest.mark.parametrize("text", ["0%", "101%", "x%", "%", "10%%", "1.5", "-1%"])
def test_a_part_that_is_none_is_refused(text):
    (problem,) = problems_of(environ={"EVERLOG_LOG_RETENTION_BYTES": text}, directory="/")
    assert text.rstrip("%") in problem


def test_only_what_is_kept_can_be_a_part_of_the_disk():
    (problem,) = problems_of(environ={"EVERLOG_LOG_SEGMENT_BYTES": "10%"}, directory="/")
    assert "'10%' is not a whole number" in problem


def test_sessions_that_may_not_be_durable_expire_with_their_connection():
    settings = load(environ={"EVERLOG_SESSIONS_DURABLE": "false"}, directory="/").settings
    assert limits_of(settings) == dataclasses.replace(Limits(), session_expiry_s=0)


@pytest.mark.parametrize(
    ("environ", "kept", "retention"),
    [
        (
            {},
            "every message but everlog/p/#, response/#; and what durable sessions are subscribed to",
            "7d, at most 9.54 MiB (10% of the disk)",
        ),
        ({"KEEP_NEVER": "[]"}, "every message", "7d, at most 9.54 MiB (10% of the disk)"),
        (
            {"KEEP_FILTERS": "[]", "LOG_RETENTION_AGE": "none", "LOG_RETENTION_BYTES": "none"},
            "only what durable sessions are subscribed to",
            "for ever",
        ),
        (
            {"KEEP_FILTERS": "[]", "SESSIONS_DURABLE": "false", "LOG_RETENTION_BYTES": "1MiB", "LOG_SHARDS": "2"},
            "nothing: keep.filters is empty and sessions.durable is false",
            "7d, at most 1 MiB a shard",
        ),
        (
            {"KEEP_FILTERS": "a/#,b", "KEEP_NEVER": "[]", "KEEP_MIN_QOS": "1", "RETENTION_AWAIT_TABLE": "true"},
            "a/#, b from QoS 1 upwards; and what durable sessions are subscribed to",
            "7d, at most 9.54 MiB (10% of the disk); not before the table has it",
        ),
        (
            {"SESSIONS_DURABLE": "false", "LOG_RETENTION_BYTES": "none", "RETENTION_CLASSES": "a=1h,b=2h"},
            "every message but everlog/p/#, response/#",
            "7d; 2 classes of topics",
        ),
    ],
)
def test_the_start_lines_say_what_is_kept_and_for_how_long(environ, kept, retention):
    environ = {f"EVERLOG_{name}": value for name, value in environ.items()}
    settings = load(environ=environ, directory="/").settings
    assert say_kept(settings) == kept
    assert say_retention(settings, retention_bytes_of(settings, 100_000_000)) == retention


def test_the_limits_section_is_the_brokers_limits():
    names = [key.name for key in all_keys().values() if key.section == "limits"]
    assert names == [field.name for field in dataclasses.fields(Limits)]
    assert limits_of(Settings()) == Limits()
    assert limits_of(load(environ={"EVERLOG_LIMITS_CONNECTIONS": "5"}, directory="/").settings).connections == 5


def test_the_groups_section_is_what_the_broker_takes(write):
    assert groups_of(Settings()) == GroupOptions()
    path = write('[groups]\nack_timeout = "5s"\nordered = ["a", "b"]\nmember_messages = 3\ninflight_messages = 9')
    assert groups_of(load(path, environ={}).settings) == GroupOptions(9, 3, 5.0, ("a", "b"))


def test_every_limit_range_is_one_of_a_limit_and_holds_its_default():
    limits = {field.name: field.default for field in dataclasses.fields(Limits)}
    for name, (lowest, highest) in LIMIT_RANGES.items():
        assert lowest <= limits[name] <= (highest or limits[name]), name


def test_every_default_is_a_value_that_could_be_given():
    for key in all_keys().values():
        toml = tomllib.loads(f"x = {key.show(key.default, toml=True)}")["x"]
        assert key.convert(toml) == key.default, key.path
        if not key.is_list:
            assert key.convert(key.show(key.default)) == key.default, key.path


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().listener.port = 1
    with pytest.raises(AttributeError):
        Settings().listener = None
    assert msgspec.structs.replace(Settings()) == Settings()


def test_too_many_retention_classes_are_refused(write):
    lines = "".join(f"'t/{number}' = '1d'\n" for number in range(256))
    (problem,) = problems_of(write(f"[retention.classes]\n{lines}"))
    assert "256 classes are too many" in problem
    assert "255" in problem


@pytest.mark.parametrize(
    ("wide", "narrow", "is_so"),
    [
        ("#", "a", True),
        ("#", "a/#", True),
        ("#", "+/+", True),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/+", "a/b", True),
        ("a/+", "a/+", True),
        ("+/b", "a/b", True),
        ("a/b", "a/+", False),
        ("a/+", "a/#", False),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("a/b", "a", False),
        ("+/b", "a/#", False),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
    ],
)
def test_a_filter_covers_another(wide, narrow, is_so):
    assert covers(wide, narrow) is is_so


def test_retention_classes_keep_the_order_they_are_written_in(write):
    config = write(
        "[retention]\nawait_table = true\n[retention.classes]\n'a/b' = '1h30m'\n'a/#' = 'none'\n'+/b' = '7d'\n"
    )
    settings = load(config, environ={}).settings
    assert settings.retention.await_table
    classes = classes_of(settings)
    assert classes.ages_us == (5_400_000_000, None, 604_800_000_000)
    assert list(classes.sort([b"a/b", b"a/c", b"c/b", b"d"])) == [1, 2, 3, 0]
    same = load(environ={"EVERLOG_RETENTION_CLASSES": "a/b=1h30m, a/#=none, +/b=7d"}, directory="/").settings
    assert classes_of(same).ages_us == classes.ages_us
    assert classes_of(Settings()) is None


CLUSTER = "[cluster]\nurl = 'postgresql://db/x'\nbucket = '/shared'\n"


def test_a_cluster_refuses_what_it_would_not_do(write):
    assert load(write(CLUSTER), environ={}).settings.cluster.bucket == "/shared"
    (said,) = problems_of(write(f"{CLUSTER}[retention.classes]\n'audit/#' = '365d'\n"))
    assert "retention.classes" in said
    assert "one age for all topics" in said
    (said,) = problems_of(write(f"{CLUSTER}[retention]\nawait_table = true\n"))
    assert "retention.await_table" in said


def test_retention_of_a_cluster_follows_the_settings(write, tmp_path):
    settings = load(write(f"{CLUSTER}[log]\nretention_age = '2d'\nretention_bytes = '5MiB'\n"), environ={}).settings
    limits = cluster_limits_of(settings, 16)
    assert (limits.age_s, limits.shard_bytes) == (2 * 86_400.0, 5 << 20)
    assert look_every_s(limits) == 10.0
    shared = load(write(f"{CLUSTER}[log]\ndata = '{tmp_path}'\nretention_age = 'none'\n"), environ={}).settings
    limits = cluster_limits_of(shared, 16)
    assert limits.age_s is None
    assert limits.shard_bytes == int(0.1 * shutil.disk_usage(tmp_path).total) // 16
    none = load(write(f"{CLUSTER}[log]\nretention_age = '3s'\nretention_bytes = 'none'\n"), environ={}).settings
    assert cluster_limits_of(none, 16).shard_bytes is None
    assert look_every_s(cluster_limits_of(none, 16)) == 0.5
    assert "16 shards" not in say_retention(with_shards(settings, 16), 5 << 20)
    assert "a shard" in say_retention(with_shards(settings, 16), 5 << 20)
