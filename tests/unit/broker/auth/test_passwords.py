import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from everlog.base import StorageError, UsageError
from everlog.broker import ScramSha256, Security, certificate_user, delete_user, set_password
from everlog.broker.auth import passwords as module
from everlog.broker.auth.passwords import Passwords, parse_passwords, read_passwords
from everlog.broker.auth.security import PASSWORD, Admission


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "passwords"
    set_password(path, "alice", b"wonder")
    set_password(path, "bob", b"\xff\x00binary")
    return path


def test_the_right_password_passes_and_others_do_not(users):
    authenticator = Passwords(read_passwords(users).hashes)
    assert authenticator.check("alice", b"wonder")
    assert authenticator.check("bob", b"\xff\x00binary")
    assert not authenticator.check("alice", b"wander")
    assert not authenticator.check("alice", b"")
    assert not authenticator.check("bob", b"wonder")
    assert not authenticator.check("nobody", b"wonder")


def test_only_a_right_password_is_recalled(users):
    authenticator = Passwords(read_passwords(users).hashes)
    assert not authenticator.recall("alice", b"wonder")
    authenticator.check("alice", b"wonder")
    authenticator.check("alice", b"wrong")
    authenticator.check("nobody", b"wonder")
    assert authenticator.recall("alice", b"wonder")
    assert not authenticator.recall("alice", b"wrong")
    assert not authenticator.recall("nobody", b"wonder")
    assert not authenticator.recall("alic", b"ewonder")  # the pair, not its letters in a row


def test_a_recalled_password_is_not_hashed_again(users, monkeypatch):
    authenticator = Passwords(read_passwords(users).hashes)
    assert authenticator.check("alice", b"wonder")
    monkeypatch.setattr(module, "HASHER", None)
    assert authenticator.check("alice", b"wonder")


def test_the_cache_is_bounded(users, monkeypatch):
    monkeypatch.setattr(module, "CACHE_ENTRIES", 1)
    authenticator = Passwords(read_passwords(users).hashes)
    authenticator.check("alice", b"wonder")
    authenticator.check("bob", b"\xff\x00binary")
    assert not authenticator.recall("alice", b"wonder")
    assert authenticator.recall("bob", b"\xff\x00binary")


def test_an_unknown_user_costs_a_hash_too(users, monkeypatch):
    authenticator = Passwords(read_passwords(users).hashes)
    verified = []

    class Spy:
        def verify(self, hashed, password):
            verified.append(hashed)
            raise module.argon2.exceptions.VerifyMismatchError

    monkeypatch.setattr(module, "HASHER", Spy())
    assert not authenticator.check("nobody", b"x")
    assert verified
    assert verified[0].startswith("$argon2id$")


def test_many_threads_may_check_at_once(users):
    authenticator = Passwords(read_passwords(users).hashes)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: authenticator.check("alice", b"wonder" if n % 2 else b"no"), range(12)))
    assert answers == [bool(n % 2) for n in range(12)]


def test_the_file_is_private_and_keeps_comments_and_order(tmp_path):
    path = tmp_path / "passwords"
    assert set_password(path, "a", b"1")
    path.write_text("# people\n" + path.read_text())
    assert set_password(path, "b", b"2")
    before = read_passwords(path).hashes
    assert not set_password(path, "a", b"3")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("# people\na:$argon2id$")
    assert list(read_passwords(path).hashes) == ["a", "b"]
    assert read_passwords(path).hashes["b"] == before["b"]
    assert read_passwords(path).hashes["a"] != before["a"]
    delete_user(path, "a")
    assert list(read_passwords(path).hashes) == ["b"]
    assert os.listdir(tmp_path) == ["passwords"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "passwords"
    set_password(path, "a", b"1")
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        set_password(path, "a", b"2")
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["passwords"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("")
    link.symlink_to(target)
    set_password(link, "a", b"1")
    assert link.is_symlink()
    assert list(read_passwords(target).hashes) == ["a"]


@pytest.mark.parametrize("user", ["", "a:b", "#a", " a", "a\n", "x" * 257])
def test_bad_user_names_are_refused(tmp_path, user):
    with pytest.raises(UsageError, match="user name"):
        set_password(tmp_path / "passwords", user, b"1")


def test_an_empty_password_is_refused(tmp_path):
    with pytest.raises(UsageError, match="password is empty"):
        set_password(tmp_path / "passwords", "a", b"")


def test_deleting_nobody_is_an_error(users):
    with pytest.raises(UsageError, match="no user 'carol'"):
        delete_user(users, "carol")


GOOD = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("\nalice", "2:6", "no colon"),
        (f":{GOOD}", "1:1", "user name is empty"),
        (f"a:{GOOD}\na:{GOOD}", "2:1", "a second time"),
        ("bob:$7$101$abc$def", "1:5", "not argon2id"),
        ("bob:$argon2id$v=19$nonsense", "1:5", "damaged"),
    ],
)
def test_errors_name_line_and_column(text, place, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_passwords(text, "pw")
    assert caught.value.message.startswith(f"pw:{place}: ")


def test_anonymous_clients_depend_on_the_setting():
    assert Security(allow_anonymous=True).decide(None, None) == Admission(True)
    assert Security(allow_anonymous=False).decide(None, None) == Admission(False)


def test_a_name_that_nothing_proves_is_no_name():
    assert Security(allow_anonymous=True).decide("alice", b"x") == Admission(True, None)
    assert Security(allow_anonymous=True).verify("alice", b"x") == Admission(True, None)


def test_a_password_is_verified_once_and_then_known(users):
    security = Security(allow_anonymous=False, password_file=str(users))
    assert security.decide("alice", b"wonder") is None
    assert security.verify("alice", b"wonder") == Admission(True, "alice", PASSWORD)
    assert security.decide("alice", b"wonder") == Admission(True, "alice", PASSWORD)
    assert security.verify("alice", b"wrong") == Admission(False)
    assert security.decide("alice", None) == Admission(False)
    assert security.decide(None, None) == Admission(False)


def test_a_changed_password_is_asked_for_after_a_reload(tmp_path):
    path = tmp_path / "passwords"
    set_password(path, "a", b"old")
    security = Security(allow_anonymous=False, password_file=str(path))
    security.verify("a", b"old")
    set_password(path, "a", b"new")
    security.prepare()()
    assert security.decide("a", b"old") is None
    assert not security.verify("a", b"old").admitted
    assert security.verify("a", b"new").admitted


def test_a_bad_password_file_keeps_the_old_users_on_reload(tmp_path):
    path = tmp_path / "passwords"
    set_password(path, "a", b"old")
    security = Security(allow_anonymous=False, password_file=str(path))
    path.write_text("nonsense")
    with pytest.raises(UsageError, match="no colon"):
        security.prepare()()
    assert security.verify("a", b"old").admitted


def test_a_certificate_is_proof_enough(users):
    security = Security(allow_anonymous=False, password_file=str(users))
    assert security.decide(None, None, "device-7") == Admission(True, "device-7")


@pytest.mark.parametrize(
    ("names", "user"),
    [(["dev-7"], "dev-7"), ([], None), (["a", "b"], None), ([""], None), (["a\nb"], None)],
)
def test_the_common_name_of_a_certificate_is_the_user(names, user):
    subject = ((("organizationName", "x"),), *((("commonName", name),) for name in names))
    assert certificate_user({"subject": subject}) == user


def test_no_certificate_no_user():
    assert certificate_user(None) is None
    assert certificate_user({}) is None


def test_a_scram_entry_is_made_when_asked_for_and_never_left_behind(tmp_path):
    path = tmp_path / "pw"
    assert set_password(path, "a", b"one", scram=True)
    assert set_password(path, "b", b"two")
    before = read_passwords(path)
    assert before.has("scram-sha-256")
    assert before.secret("scram-sha-256", "b") is None
    assert not set_password(path, "a", b"three")  # no --scram, but the old password must not live on in its entry
    after = read_passwords(path)
    assert list(after.hashes) == ["a", "b"]
    assert after.secret("scram-sha-256", "a") not in (None, before.secret("scram-sha-256", "a"))
    delete_user(path, "a")
    assert not read_passwords(path).has("scram-sha-256")


@pytest.mark.parametrize(("user", "password"), [("\u2168", b"x"), ("a", b"\xff"), ("a", b"x\x07")])
def test_what_scram_can_not_have_is_refused(tmp_path, user, password):
    with pytest.raises(UsageError, match="SCRAM"):
        set_password(tmp_path / "pw", user, password, scram=True)
    assert not (tmp_path / "pw").exists()


def test_a_damaged_scram_entry_is_named_by_its_place():
    with pytest.raises(UsageError, match=r"pw:1:3: the SCRAM-SHA-256 entry is damaged"):
        parse_passwords("a:$scram-sha-256$4096$AAAA$AAAA$AAAA\n", "pw")


def test_a_user_is_known_as_long_as_the_file_has_what_proved_it(tmp_path):
    path = tmp_path / "passwords"
    set_password(path, "both", b"x", scram=True)
    set_password(path, "plain", b"x")
    security = Security(password_file=str(path))
    known = [(user, proof) for user in ("both", "plain", "none") for proof in (PASSWORD, "SCRAM-SHA-256", "TOKEN", "")]
    assert [one for one in known if not security.still_knows(*one)] == [
        ("plain", "SCRAM-SHA-256"),
        ("none", PASSWORD),
        ("none", "SCRAM-SHA-256"),
    ]
    assert security.still_knows(None, "")
    assert Security(password_file=str(path), methods={"SCRAM-SHA-256": ScramSha256}).still_knows(
        "none", "SCRAM-SHA-256"
    )
