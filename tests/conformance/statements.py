"""The normative statements of both specifications, in a few words of our own, and whom each binds.

`S` binds the server, `B` both sides, `C` clients alone (a server can only refuse what breaks it, and where it does, a
test shows that). What is marked `-` is no statement about MQTT packets that a test of the broker could reach.
"""

V5 = """
1.5.4-1 B strings are well-formed UTF-8 without surrogates
1.5.4-2 B strings have no null character
1.5.4-3 B U+FEFF is a character like any other
1.5.5-1 B variable byte integers take as few bytes as they need
1.5.7-1 B both strings of a pair are UTF-8 strings
2.1.3-1 B reserved flag bits have their listed value
2.2.1-2 B a QoS 0 PUBLISH has no packet identifier
2.2.1-3 C a new SUBSCRIBE, UNSUBSCRIBE or PUBLISH has an unused packet identifier that is not 0
2.2.1-4 S a new PUBLISH to a client has an unused packet identifier that is not 0
2.2.1-5 B acknowledgements carry the identifier of their PUBLISH
2.2.1-6 S SUBACK and UNSUBACK carry the identifier of what they answer
2.2.2-1 B no properties are a property length of 0
3.1.0-1 C the first packet is CONNECT
3.1.0-2 S a second CONNECT is a protocol error
3.1.2-1 S another protocol name: the connection closes
3.1.2-2 S an unsupported protocol version: the connection closes
3.1.2-3 S the reserved CONNECT flag is checked
3.1.2-4 B Clean Start 1 discards the session
3.1.2-5 S Clean Start 0 resumes the session if there is one
3.1.2-6 S and begins one if there is none
3.1.2-7 S a will is stored with the session
3.1.2-8 S a will is published after its delay or with the end of the session, unless discarded
3.1.2-9 C the will's fields are there if the flag is
3.1.2-10 S a will that was published or discarded is gone
3.1.2-11 C no will, no will QoS
3.1.2-12 C the will QoS is not 3
3.1.2-13 C no will, no will retain
3.1.2-14 S a will without will retain is not retained
3.1.2-15 S a will with will retain is retained
3.1.2-16 C no user name without its flag
3.1.2-17 C a user name with its flag
3.1.2-18 C no password without its flag
3.1.2-19 C a password with its flag
3.1.2-20 C a client pings within its keep alive
3.1.2-21 C a client uses the server's keep alive if it is told one
3.1.2-22 S silence for one and a half keep alives ends the connection
3.1.2-23 B the session is stored while its expiry interval runs
3.1.2-24 S no packet exceeds the client's maximum packet size
3.1.2-25 S a message too large for the client is discarded as if it had been sent
3.1.2-26 S no alias exceeds the client's maximum
3.1.2-27 S a client without a maximum gets no aliases
3.1.2-28 S no response information unless asked for
3.1.2-29 S without problem information, reason strings only where allowed
3.1.2-30 C with an authentication method only AUTH and DISCONNECT before the CONNACK
3.1.3-1 C the payload's fields are in their order
3.1.3-2 B the client identifier identifies the session
3.1.3-3 C the client identifier is the first field
3.1.3-4 C the client identifier is a UTF-8 string
3.1.3-5 S identifiers of 1 to 23 letters and digits are allowed
3.1.3-6 S an empty identifier is replaced by a unique one
3.1.3-7 S which is returned and used
3.1.3-8 S a rejected identifier closes the connection
3.1.3-9 S a client back within the will delay has no will sent
3.1.3-10 S user properties of a will keep their order
3.1.3-11 C the will topic is a UTF-8 string
3.1.3-12 C the user name is a UTF-8 string
3.1.4-1 S a CONNECT that breaks the format closes the connection
3.1.4-2 S a CONNECT that fails other checks closes the connection
3.1.4-3 S an existing connection of the client is closed
3.1.4-4 S clean start is processed
3.1.4-5 S an accepted CONNECT is answered with success
3.1.4-6 S nothing behind a rejected CONNECT is processed
3.2.0-1 S CONNACK comes before anything else
3.2.0-2 S there is one CONNACK
3.2.2-1 S the CONNACK's reserved bits are 0
3.2.2-2 S Clean Start 1: session present is 0
3.2.2-3 S Clean Start 0: session present says whether there is one
3.2.2-4 C a client without the session closes
3.2.2-5 C a client whose session is gone forgets it
3.2.2-6 S a refusal has session present 0
3.2.2-7 S a refusal closes the connection
3.2.2-8 S CONNACK reason codes are those of the table
3.2.2-9 S a server without QoS 1 or 2 says so
3.2.2-10 S and still accepts subscriptions
3.2.2-11 C a client keeps to the maximum QoS
3.2.2-12 S a will QoS beyond the server's is refused
3.2.2-13 S a retained will without support for it is refused
3.2.2-14 C no RETAIN where it is not available
3.2.2-15 C packets keep to the server's maximum size
3.2.2-16 S an assigned identifier is new
3.2.2-17 C aliases keep to the server's maximum
3.2.2-18 C without one there are none
3.2.2-19 S a reason string must fit the client's maximum packet size
3.2.2-20 S user properties must fit it
3.2.2-21 C the server's keep alive overrules the client's
3.2.2-22 S without one the client's counts
3.3.1-1 B a redelivery has DUP
3.3.1-2 B a QoS 0 message has no DUP
3.3.1-3 B DUP is not passed on
3.3.1-4 B QoS 3 does not exist
3.3.1-5 S RETAIN replaces the retained message
3.3.1-6 S an empty retained message removes it
3.3.1-7 S and is not stored
3.3.1-8 S without RETAIN the retained message stays as it is
3.3.1-9 S retain handling 0: retained messages are sent
3.3.1-10 S retain handling 1: only for a new subscription
3.3.1-11 S retain handling 2: never
3.3.1-12 S without retain as published the flag is 0
3.3.1-13 S with it the flag is as published
3.3.2-1 B the topic name is a UTF-8 string
3.3.2-2 B topic names have no wildcards
3.3.2-3 S the topic name matches the subscription
3.3.2-4 S the payload format indicator is passed on
3.3.2-5 S an expired message is not sent
3.3.2-6 S the expiry interval is what is left of it
3.3.2-7 B aliases do not outlive the connection
3.3.2-8 B alias 0 does not exist
3.3.2-9 C aliases keep to the server's maximum
3.3.2-10 C a client accepts every alias up to its maximum
3.3.2-11 S aliases keep to the client's maximum
3.3.2-12 S every alias up to ours is accepted
3.3.2-13 B the response topic is a UTF-8 string
3.3.2-14 B the response topic has no wildcards
3.3.2-15 S the response topic is passed on
3.3.2-16 S correlation data is passed on
3.3.2-17 S user properties are passed on
3.3.2-18 S in their order
3.3.2-19 B the content type is a UTF-8 string
3.3.2-20 S the content type is passed on
3.3.4-1 B a PUBLISH is answered as its QoS asks
3.3.4-2 S overlapping subscriptions: the highest QoS
3.3.4-3 S their identifiers are sent
3.3.4-4 S all of them in a single copy
3.3.4-5 S or each in its own copy
3.3.4-6 C a client sends no subscription identifier
3.3.4-7 C a client keeps to the server's receive maximum
3.3.4-8 C which delays nothing but PUBLISH
3.3.4-9 S the server keeps to the client's receive maximum
3.3.4-10 S which delays nothing but PUBLISH
3.4.2-1 B PUBACK reason codes are those of the table
3.4.2-2 B a reason string must fit
3.4.2-3 B user properties must fit
3.5.2-1 B PUBREC reason codes are those of the table
3.5.2-2 B a reason string must fit
3.5.2-3 B user properties must fit
3.6.1-1 B PUBREL has its flags
3.6.2-1 B PUBREL reason codes are those of the table
3.6.2-2 B a reason string must fit
3.6.2-3 B user properties must fit
3.7.2-1 B PUBCOMP reason codes are those of the table
3.7.2-2 B a reason string must fit
3.7.2-3 B user properties must fit
3.8.1-1 C SUBSCRIBE has its flags
3.8.3-1 C topic filters are UTF-8 strings
3.8.3-2 C there is at least one
3.8.3-3 S No Local: not back to the client that published
3.8.3-4 C No Local is not for shared subscriptions
3.8.3-5 S reserved option bits are malformed
3.8.4-1 S SUBSCRIBE is answered with SUBACK
3.8.4-2 S which has its packet identifier
3.8.4-3 S the same filter replaces the subscription
3.8.4-4 S and loses no message; retained ones come again if asked for
3.8.4-5 S several filters are as several packets, with one SUBACK
3.8.4-6 S a reason code for each
3.8.4-7 S which is the granted QoS or an error
3.8.4-8 S a message comes at the lower of its QoS and the granted one
3.9.2-1 S a reason string must fit
3.9.2-2 S user properties must fit
3.9.3-1 S reason codes are in the order of the filters
3.9.3-2 S and those of the table
3.10.1-1 C UNSUBSCRIBE has its flags
3.10.2-1 C its filters are UTF-8 strings
3.10.2-2 C there is at least one
3.10.4-1 S filters are compared character by character
3.10.4-2 S no new messages are added
3.10.4-3 S those under way are completed
3.10.4-4 S UNSUBSCRIBE is answered with UNSUBACK
3.10.4-5 S which has its packet identifier, whatever was deleted
3.10.4-6 S several filters are as several packets, with one UNSUBACK
3.11.2-1 S a reason string must fit
3.11.2-2 S user properties must fit
3.11.3-1 S reason codes are in the order of the filters
3.11.3-2 S and those of the table
3.12.4-1 S PINGREQ is answered with PINGRESP
3.14.0-1 S no DISCONNECT before a successful CONNACK
3.14.1-1 B DISCONNECT's reserved bits are 0
3.14.2-1 B DISCONNECT reason codes are those of the table
3.14.2-2 S a server sends no session expiry interval
3.14.2-3 B a reason string must fit
3.14.2-4 B user properties must fit
3.14.4-1 B nothing is sent behind a DISCONNECT
3.14.4-2 B it closes the connection
3.14.4-3 S a normal one discards the will
3.15.1-1 B AUTH's reserved bits are 0
3.15.2-1 B AUTH reason codes are those of the table
3.15.2-2 B a reason string must fit
3.15.2-3 B user properties must fit
4.1.0-1 B the session stays while the connection is open
4.1.0-2 S and ends when its expiry interval has passed
4.2-1 B an ordered, lossless stream of bytes
4.3.1-1 B QoS 0 goes out with QoS 0 and no DUP
4.3.2-1 B QoS 1 takes an unused identifier
4.3.2-2 B and goes out without DUP
4.3.2-3 B it is unacknowledged until its PUBACK
4.3.2-4 B the receiver answers with PUBACK once it owns the message
4.3.2-5 B after it the identifier means a new message
4.3.3-1 B QoS 2 takes an unused identifier
4.3.3-2 B and goes out without DUP
4.3.3-3 B it is unacknowledged until its PUBREC
4.3.3-4 B which is answered with PUBREL
4.3.3-5 B which is unacknowledged until its PUBCOMP
4.3.3-6 B no PUBLISH after its PUBREL
4.3.3-7 B what was sent does not expire
4.3.3-8 B the receiver answers with PUBREC once it owns the message
4.3.3-9 B after a PUBREC with an error the identifier means a new message
4.3.3-10 B until its PUBREL a repeated message is answered and not delivered
4.3.3-11 B PUBREL is answered with PUBCOMP
4.3.3-12 B after it the identifier means a new message
4.3.3-13 B the exchange goes on though the message has expired
4.4.0-1 B unacknowledged PUBLISHes and PUBRELs go out again with a resumed session, and only then
4.4.0-2 B what was refused is not sent again
4.5.0-1 S a message is added to the sessions that subscribe to it
4.5.0-2 C a client acknowledges every message
4.6.0-1 C a redelivery keeps the order
4.6.0-2 C PUBACKs are in the order of their messages
4.6.0-3 C PUBRECs too
4.6.0-4 C PUBRELs are in the order of their PUBRECs
4.6.0-5 S messages of one client to a topic stay in order
4.6.0-6 S for every topic and non-shared subscription
4.7.0-1 B no wildcards in topic names
4.7.1-1 B # is alone at the end
4.7.1-2 B + fills its level
4.7.2-1 S a leading wildcard does not match $ topics
4.7.3-1 B names and filters are not empty
4.7.3-2 B and have no null character
4.7.3-3 B and no more than 65,535 bytes
4.7.3-4 S they are matched without normalisation
4.8.2-1 B a share name has at least one character
4.8.2-2 B and no / + #, and a filter follows
4.8.2-3 S the granted QoS holds
4.8.2-4 S a QoS 2 message is completed with the member that it was sent to
4.8.2-5 S and goes to nobody else if that session ends
4.8.2-6 S what a member refuses goes to nobody else
4.9.0-1 B the first send quota is at most the receive maximum
4.9.0-2 B without quota no QoS 1 or 2 PUBLISH goes out
4.9.0-3 B all else is processed
4.12.0-1 S an unknown authentication method closes the connection
4.12.0-2 S the server's AUTH says continue
4.12.0-3 C the client's too
4.12.0-4 S a failed authentication closes the connection
4.12.0-5 B every AUTH and the CONNACK name the method
4.12.0-6 S no method in CONNECT: none in CONNACK, and no AUTH
4.12.0-7 C nor from the client
4.12.1-1 C a re-authentication uses the same method
4.12.1-2 B a failed one closes the connection
4.13.1-1 S a malformed packet or protocol error closes the connection
4.13.2-1 B a reason code of 0x80 or more closes the connection
6.0.0-1 B WebSocket: binary frames
6.0.0-2 B WebSocket: packets need not be aligned with frames
6.0.0-3 C WebSocket: the client asks for the subprotocol mqtt
6.0.0-4 S WebSocket: the server answers mqtt
"""

V4 = """
1.5.3-1 B strings are well-formed UTF-8 without surrogates
1.5.3-2 B strings have no null character
1.5.3-3 B U+FEFF is a character like any other
2.2.2-1 B reserved flag bits have their listed value
2.2.2-2 B other flags close the connection
2.3.1-1 C SUBSCRIBE, UNSUBSCRIBE and PUBLISH with QoS have an identifier that is not 0
2.3.1-2 C a new packet has an unused one
2.3.1-3 B a packet sent again keeps its identifier
2.3.1-4 S the server's PUBLISHes too
2.3.1-5 B a QoS 0 PUBLISH has no packet identifier
2.3.1-6 B acknowledgements carry the identifier of their PUBLISH
2.3.1-7 S SUBACK and UNSUBACK carry the identifier of what they answer
3.1.0-1 C the first packet is CONNECT
3.1.0-2 S a second CONNECT disconnects
3.1.2-1 S another protocol name is not processed as MQTT
3.1.2-2 S an unsupported level is answered with 0x01 and closed
3.1.2-3 S the reserved CONNECT flag is checked
3.1.2-4 B CleanSession 0 resumes or begins a session that is stored
3.1.2-5 S QoS 1 and 2 messages for a client that is away are stored
3.1.2-6 B CleanSession 1 discards the session, and nothing of it is used again
3.1.2-7 S retained messages do not end with the session
3.1.2-8 S a will is published when the connection is lost
3.1.2-9 C the will's fields are there if the flag is
3.1.2-10 S a will that was published or discarded is gone
3.1.2-11 C no will, no will fields
3.1.2-12 S no will flag: no will is published
3.1.2-13 C no will, no will QoS
3.1.2-14 C the will QoS is not 3
3.1.2-15 C no will, no will retain
3.1.2-16 S a will without will retain is not retained
3.1.2-17 S a will with will retain is retained
3.1.2-18 C no user name without its flag
3.1.2-19 C a user name with its flag
3.1.2-20 C no password without its flag
3.1.2-21 C a password with its flag
3.1.2-22 C no password without a user name
3.1.2-23 C a client pings within its keep alive
3.1.2-24 S silence for one and a half keep alives ends the connection
3.1.3-1 C the payload's fields are in their order
3.1.3-2 B the client identifier identifies the session
3.1.3-3 C the client identifier is the first field
3.1.3-4 C the client identifier is a UTF-8 string
3.1.3-5 S identifiers of 1 to 23 letters and digits are allowed
3.1.3-6 S an empty identifier is replaced by a unique one
3.1.3-7 C which needs CleanSession 1
3.1.3-8 S else it is answered with 0x02 and closed
3.1.3-9 S a rejected identifier is answered with 0x02 and closed
3.1.3-10 C the will topic is a UTF-8 string
3.1.3-11 C the user name is a UTF-8 string
3.1.4-1 S a CONNECT that breaks the format closes without CONNACK
3.1.4-2 S an existing connection of the client is closed
3.1.4-3 S CleanSession is processed
3.1.4-4 S an accepted CONNECT is answered with 0
3.1.4-5 S nothing behind a rejected CONNECT is processed
3.2.0-1 S the first packet is CONNACK
3.2.2-1 S CleanSession 1: session present is 0
3.2.2-2 S a stored session: session present is 1
3.2.2-3 S none: session present is 0
3.2.2-4 S a refusal has session present 0
3.2.2-5 S a refusal closes the connection
3.2.2-6 S without a fitting return code the connection closes without CONNACK
3.3.1-1 B a redelivery has DUP
3.3.1-2 B a QoS 0 message has no DUP
3.3.1-3 B DUP is not passed on
3.3.1-4 B QoS 3 closes the connection
3.3.1-5 S RETAIN stores the message and its QoS
3.3.1-6 S a new subscription gets the retained messages
3.3.1-7 S a retained QoS 0 message replaces any other
3.3.1-8 S what a new subscription gets has RETAIN
3.3.1-9 S what an established one gets has not
3.3.1-10 S an empty retained message removes it
3.3.1-11 S and is not stored
3.3.1-12 S without RETAIN the retained message stays as it is
3.3.2-1 B the topic name is a UTF-8 string
3.3.2-2 B topic names have no wildcards
3.3.2-3 S the topic name matches the subscription
3.3.4-1 B a PUBLISH is answered as its QoS asks
3.3.5-1 S overlapping subscriptions: the highest QoS
3.3.5-2 S a PUBLISH that is not authorised: a positive answer or the end
3.6.1-1 B PUBREL has its flags
3.8.1-1 C SUBSCRIBE has its flags
3.8.3-1 C topic filters are UTF-8 strings
3.8.3-2 S a server without wildcards refuses them
3.8.3-3 C there is at least one filter
3-8.3-4 S other bits and QoS 3 are malformed
3.8.4-1 S SUBSCRIBE is answered with SUBACK
3.8.4-2 S which has its packet identifier
3.8.4-3 S the same filter replaces the subscription; retained messages come again, no message is lost
3.8.4-4 S several filters are as several packets, with one SUBACK
3.8.4-5 S a return code for each
3.8.4-6 S a message comes at the lower of its QoS and the granted one
3.9.3-1 S return codes are in the order of the filters
3.9.3-2 S and 0, 1, 2 or 0x80
3.10.1-1 C UNSUBSCRIBE has its flags
3.10.3-1 C its filters are UTF-8 strings
3.10.3-2 C there is at least one
3.10.4-1 S filters are compared character by character
3.10.4-2 S no new messages are added
3.10.4-3 S those under way are completed
3.10.4-4 S UNSUBSCRIBE is answered with UNSUBACK, which has its packet identifier
3.10.4-5 S whatever was deleted
3.10.4-6 S several filters are as several packets, with one UNSUBACK
3.12.4-1 S PINGREQ is answered with PINGRESP
3.14.1-1 S DISCONNECT's reserved bits are 0
3.14.4-1 C a client closes behind its DISCONNECT
3.14.4-2 C and sends nothing more
3.14.4-3 S it discards the will
4.1.0-1 B session state is stored for the whole session
4.1.0-2 B a session lasts at least as long as its connection
4.3.1-1 B QoS 0 goes out with QoS 0 and no DUP
4.3.2-1 B the sender's side of QoS 1
4.3.2-2 B the receiver's side of QoS 1
4.3.3-1 B the sender's side of QoS 2
4.3.3-2 B the receiver's side of QoS 2
4.4.0-1 B unacknowledged PUBLISHes and PUBRELs go out again with a resumed session
4.5.0-1 S a message is added to the sessions that subscribe to it
4.5.0-2 C a client acknowledges every message
4.6.0-1 C a redelivery keeps the order
4.6.0-2 C PUBACKs are in the order of their messages
4.6.0-3 C PUBRECs too
4.6.0-4 C PUBRELs are in the order of their PUBRECs
4.6.0-5 S every topic is ordered by default
4.6.0-6 S messages of one client to an ordered topic stay in order
4.7.1-1 B no wildcards in topic names
4.7.1-2 B # is alone at the end
4.7.1-3 B + fills its level
4.7.2-1 S a leading wildcard does not match $ topics
4.7.3-1 B names and filters are not empty
4.7.3-2 B and have no null character
4.7.3-3 B and no more than 65,535 bytes
4.7.3-4 S they are matched without normalisation
4.8.0-1 B a protocol violation closes the connection
4.8.0-2 B a transient error closes the connection of the packet that met it
6.0.0-1 B WebSocket: binary frames
6.0.0-2 B WebSocket: packets need not be aligned with frames
6.0.0-3 C WebSocket: the client asks for the subprotocol mqtt
6.0.0-4 S WebSocket: the server answers mqtt
"""

_CLIENTS = "a statement about clients that a server can't see broken"

# Why there is no test here, by version; every statement without a test has its line.
NOT_SHOWN = {
    5: {
        **dict.fromkeys(["3.2.2-4", "3.2.2-5", "3.3.2-10", "3.3.4-8", "4.5.0-2"], _CLIENTS),
        "3.3.4-5": "a message comes in a single copy",
    },
    4: {
        "3.8.3-2": "wildcards are supported",
        "4.5.0-2": _CLIENTS,
    },
}

GAPS = """
- **A retained message to a durable session** that was sent and not acknowledged when the broker ended is sent again as
  the topic has it by then. It is not if it was removed, or replaced by one of lower QoS.
- **No Local** is remembered for what a session published until it was handed everything up to there. After a restart of
  the broker a durable session that was behind may get its own messages once, and a subscription the retained messages
  that its client published before.
- **A message that expires** after it was sent at QoS 1 and before it was acknowledged is not sent again when the client
  is back, where [MQTT-4.4.0-1] asks for it: its packet id is free, as if it had been acknowledged.
- **Shared subscriptions of clean sessions alone** deal messages out among connected members. What is published while no
  member is connected is not kept, and what waits for the last member that leaves is lost. A group with a durable
  session in it has a place of its own in the log ([shared groups](../explanation/shared-groups.md)).
- **A topic that stops being kept** (the last durable subscription to it goes) while messages of it wait for their
  commit: messages published after that need not wait and may overtake them.
- **Keep alive** counts packets, as [MQTT-3.1.2-22] says, and beside them any 1,024 bytes at once of a packet that is on
  its way, so that a large message over a slow line does not end its connection.
""".strip()


def parse(table: str) -> dict[str, tuple[str, str]]:
    """id -> (whom it binds, what it says)."""
    rows = (line.split(" ", 2) for line in table.strip().splitlines())
    return {number: (whom, text) for number, whom, text in rows}


STATEMENTS = {5: parse(V5), 4: parse(V4)}
