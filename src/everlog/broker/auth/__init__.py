"""auth: who a client is and what it may do."""

from everlog.broker.auth.acl import INNER_USER
from everlog.broker.auth.login_queue import Attempt, KnownLogins, LoginQueue, source_of
from everlog.broker.auth.methods import (
    Accept,
    Applicant,
    Authenticator,
    Continue,
    Credentials,
    Factory,
    Methods,
    Outcome,
    Refuse,
)
from everlog.broker.auth.passwords import delete_user, set_password
from everlog.broker.auth.scram import ScramSha256
from everlog.broker.auth.security import Admission, Security, certificate_user
