"""SCRAM-SHA-256 by the example of RFC 7677, and what is not as the RFC wants it."""

import base64
import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.app.decoy_key import read_decoy_key
from everlog.base import UsageError
from everlog.broker import Accept, Applicant, Continue, Refuse, ScramSha256, Security
from everlog.broker.auth.passwords import PasswordFile, Passwords, set_password
from everlog.broker.auth.scram import KIND, METHOD, make_verifier, parse_verifier, prepared

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SOMEBODY = Applicant("c", "local")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(**users: str) -> ScramSha256:
    entries = {(KIND, user): str(make_verifier(password, SALT, 4096)) for user, password in users.items()}
    return ScramSha256(PasswordFile(entries=entries), lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


def test_the_example_of_the_rfc():
    one = exchange(user="pencil")
    assert one.begin(METHOD, FIRST, SOMEBODY) == Continue(SERVER_FIRST)
    assert one.step(FINAL) == Accept("user", SERVER_FINAL)


def test_a_wrong_password_and_an_unknown_user_look_alike():
    for users in ({"user": "pen"}, {}):
        one = exchange(**users)
        assert isinstance(one.begin(METHOD, FIRST, SOMEBODY), Continue)
        assert one.step(FINAL) == Refuse(why="user name or password is wrong")


def test_an_unknown_user_has_a_salt_and_always_the_same():
    def shown(name: bytes) -> bytes:
        answer = exchange().begin(METHOD, b"n,,n=" + name + b",r=x", SOMEBODY)
        assert isinstance(answer, Continue)
        return answer.data or b""

    assert shown(b"one") == shown(b"one")
    assert shown(b"one") != shown(b"two")


def test_an_unknown_user_is_shown_the_same_after_a_restart(tmp_path):
    users = tmp_path / "users"
    set_password(users, "known", b"x", scram=True)

    def started() -> bytes:
        security = Security(password_file=str(users), decoy_key=read_decoy_key(str(tmp_path)))
        answer = security.exchange(METHOD).begin(METHOD, b"n,,n=unknown,r=x", SOMEBODY)
        return answer.data.partition(b",")[2]  # salt and iterations, without the nonce

    assert started() == started()


@pytest.mark.parametrize(
    "first",
    [
        None,
        b"",
        b"n,,",
        b"\xff",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,r=x,n=user",
        b"n,,n=,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=user,r=",
        b"n,,n=user,r=\xc3\xa4",
        b"n,a=other,n=user,r=x",
        b"n,b=user,n=user,r=x",
        b"n,,n=us\x07er,r=x",
        b"n,,n=user,r=" + b"x" * 5000,
    ],
)
def test_a_wrong_first_message_is_refused(first):
    assert isinstance(exchange(user="pencil").begin(METHOD, first, SOMEBODY), Refuse)


@pytest.mark.parametrize(
    "final",
    [
        None,
        b"",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        FINAL.replace(b"c=biws", b"c=eSws"),
        FINAL.replace(b"r=rO", b"r=sO"),
        FINAL.replace(b"p=dH", b"p=DH"),
        FINAL[:-4],
        FINAL[:-1] + b"!",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,c=biws,p=" + FINAL[-44:],
    ],
)
def test_a_wrong_last_message_is_refused(final):
    one = exchange(user="pencil")
    one.begin(METHOD, FIRST, SOMEBODY)
    assert isinstance(one.step(final), Refuse)


def proof(password: str, bare: str, server_first: str, channel: str) -> tuple[str, bytes]:
    """A client by the RFC's formulas: its last message, and what the server must answer."""
    nonce, salt, count = (part[2:] for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), base64.b64decode(salt), int(count))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    final = f"c={base64.b64encode(channel.encode()).decode()},r={nonce}"
    message = f"{bare},{server_first},{final}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    mixed = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    return f"{final},p={base64.b64encode(mixed).decode()}", b"v=" + base64.b64encode(answer)


NAMES = st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)


@given(NAMES, NAMES, st.sampled_from(["n,,", "y,,", "n,a={},"]))
def test_any_name_and_password_go_through(user, password, header):
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    header = header.format(escaped)
    bare = f"n={escaped},r=abc"
    one = exchange(**{user: password})
    answer = one.begin(METHOD, (header + bare).encode(), SOMEBODY)
    assert isinstance(answer, Continue)
    final, expected = proof(password, bare, (answer.data or b"").decode(), header)
    assert one.step(final.encode()) == Accept(user, expected)


def test_an_entry_is_read_back():
    verifier = make_verifier("pencil")
    assert parse_verifier(str(verifier)) == verifier


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-5],
        lambda text: text.replace("scram-sha-256", "scram-sha-1"),
        lambda text: text.replace("$32768$", "$100$"),
        lambda text: text.replace("$32768$", "$many$"),
        lambda text: text + "$",
    ],
)
def test_a_damaged_entry_is_refused(change):
    with pytest.raises(UsageError):
        parse_verifier(change(str(make_verifier("pencil"))))


@pytest.mark.parametrize(
    ("text", "expected"), [("I\u00adX", "IX"), ("user", "user"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")]
)
def test_names_are_prepared_as_the_rfc_shows(text, expected):
    assert prepared(text) == expected


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "a\u200e"])
def test_prohibited_characters_are_refused(text):
    with pytest.raises(UsageError):
        prepared(text)


@pytest.mark.parametrize("text", ["a" * 257, "\ufdfa" * 20])
def test_a_name_that_is_long_or_becomes_long_is_refused_before_it_is_looked_at(text: str) -> None:
    with pytest.raises(UsageError, match="more than 256 characters"):
        prepared(text)


def test_an_exchange_costs_the_event_loop_a_small_part_of_a_password_check() -> None:
    def cost(work):
        begun = time.thread_time()
        work()
        return time.thread_time() - begun

    def try_in_vain():
        dearest = ("n,,n=" + "\u05d0" * 256 + ",r=" + "x" * 500).encode()
        one = exchange(user="pencil")
        nonce = one.begin(METHOD, dearest, SOMEBODY).data.split(b",")[0]
        assert isinstance(one.step(b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32))), Refuse)

    passwords = Passwords({})
    one_check = min(cost(lambda: passwords.check("nobody", b"wrong")) for _ in range(3))
    made = min(  # the entry, which a broker reads from its file
        cost(lambda: exchange(user="pencil")) for _ in range(5)
    )
    assert min(cost(try_in_vain) for _ in range(5)) - made < one_check / 5
