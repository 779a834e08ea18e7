"""The options of every command that calls a broker as a client, in one place: a command asks for a `call` and gets one.

`with_call` gives the command's function the parameters of `call_of` in the place of its own parameter `call`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from everlog.cli import dial


def call_of(
    host: dial.Host = "localhost",
    port: dial.Port = None,
    url: dial.Url = None,
    client_id: dial.ClientId = None,
    username: dial.User = None,
    pw: dial.Password = None,
    protocol_version: dial.Version = "5",
    durable: dial.Durable = False,
    expiry: dial.Expiry = None,
    keepalive: dial.KeepAlive = 60,
    cafile: dial.CaFile = None,
    os_certs: dial.CaSystem = False,
    cert: dial.Cert = None,
    key: dial.CertKey = None,
    insecure: dial.Insecure = False,
    will_topic: dial.WillTopic = None,
    will_payload: dial.WillPayload = "",
    will_qos: dial.WillQos = 0,
    will_retain: dial.WillRetain = False,
) -> dial.Call:
    """What the options say."""
    return dial.plan_call(
        host=host,
        port=port,
        url=url,
        client_id=client_id,
        user=username,
        password=pw,
        version=protocol_version,
        durable=durable,
        expiry=expiry,
        keep_alive=keepalive,
        cafile=cafile,
        system_cas=os_certs,
        cert=cert,
        cert_key=key,
        insecure=insecure,
        will=dial.will_of(will_topic, will_payload, will_qos, will_retain),
    )


def with_call(command: Callable[..., int]) -> Callable[..., int]:
    """The command with the options of a call behind its own."""
    shared = inspect.signature(call_of).parameters
    signature = inspect.signature(command)
    own = [one for one in signature.parameters.values() if one.name != "call"]

    @functools.wraps(command)
    def run(**values: Any) -> int:
        call = call_of(**{name: values.pop(name) for name in shared})
        return command(call=call, **values)

    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *shared.values())]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    return run
