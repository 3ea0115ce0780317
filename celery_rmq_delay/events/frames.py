"""The part of AMQP 0-9-1 that publishing events needs: frames of a publish, and the broker's replies. No I/O."""

from __future__ import annotations

from struct import pack, unpack_from

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"

PUBLISH, RETURNED, ACK, NACK = (60, 40), (60, 50), (60, 80), (60, 120)
CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)

#: A method's class and number, and its arguments as they are sent.
Method = tuple[tuple[int, int], bytes]


class Frames:
    """The frames of a publish to one queue; all but the body and its size are encoded once."""

    def __init__(self, queue: str, channel: int, frame_max: int) -> None:
        name = queue.encode()
        # A reserved short, the default exchange, the routing key, the flag "mandatory".
        publish = pack(f"!HHHBB{len(name)}sB", *PUBLISH, 0, 0, len(name), name, 1)
        kind = b"application/json"
        # Bits 15, 14 and 12: content type, content encoding and delivery mode follow.
        properties = pack(f"!HB{len(kind)}sB5sB", 0xD000, len(kind), kind, 5, b"utf-8", 2)
        header = _frame(_HEADER, channel, pack("!HHQ", PUBLISH[0], 0, 0) + properties)
        size_at = 7 + 4
        self._before_size = _frame(_METHOD, channel, publish) + header[:size_at]
        self._after_size = header[size_at + 8 :]
        self._body = pack("!BH", _BODY, channel)
        self._most = frame_max - 8

    def publish(self, body: bytes) -> bytes:
        """Return the frames of one publish."""
        parts = [self._before_size, len(body).to_bytes(8, "big"), self._after_size]
        for at in range(0, len(body), self._most):
            chunk = body[at : at + self._most]
            parts += (self._body, len(chunk).to_bytes(4, "big"), chunk, _END)
        return b"".join(parts)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return pack("!BHI", kind, channel, len(payload)) + payload + _END


def methods(inbox: bytearray) -> list[Method]:
    """Remove the complete frames from ``inbox``; return the methods among them."""
    found, at = list[Method](), 0
    while at + 8 <= len(inbox):
        kind, _channel, size = unpack_from("!BHI", inbox, at)
        if at + 8 + size > len(inbox):
            break
        if kind == _METHOD and size >= 4:
            found.append((unpack_from("!HH", inbox, at + 7), bytes(inbox[at + 11 : at + 7 + size])))
        at += 8 + size
    del inbox[:at]
    return found


def reply_text(arguments: bytes) -> str:
    """Return the reply text in the arguments of ``close`` or ``return``."""
    return arguments[3 : 3 + arguments[2]].decode("utf-8", "replace") if len(arguments) > 3 else ""


class Confirms:
    """Counts the broker's confirms of the publishes on a channel, which are numbered from 1."""

    def __init__(self) -> None:
        self.published = 0
        #: The highest number up to which all are confirmed, and confirmed numbers above it.
        self._up_to, self._apart = 0, set[int]()

    @property
    def missing(self) -> int:
        """How many publishes are unconfirmed; a confirm may come before its publish is counted."""
        return max(0, self.published - self._answered)

    @property
    def _answered(self) -> int:
        return self._up_to + len(self._apart)

    def answer(self, method: tuple[int, int], arguments: bytes) -> int:
        """Count an ack or a nack; return how many publishes a nack refuses."""
        if len(arguments) < 9:
            return 0
        before = self._answered
        (tag,) = unpack_from("!Q", arguments)
        if not arguments[8] & 1:
            self._apart.add(tag)
        elif tag > self._up_to:
            self._up_to = tag
            self._apart = {each for each in self._apart if each > tag}
        while self._up_to + 1 in self._apart:
            self._up_to += 1
            self._apart.remove(self._up_to)
        return self._answered - before if method == NACK else 0
