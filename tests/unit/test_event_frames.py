"""The AMQP frames in which events are written, and those that are read."""

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.events.frames import ACK, NACK, Confirms, Frames, methods, reply_text


def frames(data):
    """Take AMQP frames apart: (type, channel, payload)."""
    found = []
    while data:
        size = int.from_bytes(data[3:7], "big")
        assert data[7 + size] == 0xCE
        found.append((data[0], int.from_bytes(data[1:3], "big"), data[7 : 7 + size]))
        data = data[8 + size :]
    return found


@given(st.binary(max_size=20_000), st.sampled_from([4096, 131_072]))
def test_a_publish_is_a_method_a_header_and_bodies_that_fit(body, frame_max):
    method, header, *bodies = frames(Frames("rmq_delay.events", 3, frame_max).publish(body))
    assert {channel for _, channel, _ in (method, header, *bodies)} == {3}
    assert [kind for kind, _, _ in (method, header, *bodies)] == [1, 2, *[3] * len(bodies)]
    assert method[2] == b"\x00\x3c\x00\x28\x00\x00\x00\x10rmq_delay.events\x01"
    assert int.from_bytes(header[2][4:12], "big") == len(body)
    assert b"".join(payload for _, _, payload in bodies) == body
    assert all(8 + len(payload) <= frame_max for _, _, payload in bodies)


CLOSE = b"\x00\x0a\x00\x32\x01\x40\x10CONNECTION_FORCE\x00\x00\x00\x00"
RETURN = b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE\x00\x10rmq_delay.events"


def frame(kind, payload):
    return bytes([kind, 0, 1]) + len(payload).to_bytes(4, "big") + payload + b"\xce"


@given(st.lists(st.integers(1, 90), max_size=8))
def test_methods_are_read_however_they_arrive(cuts):
    data = frame(1, RETURN) + frame(2, b"\x00" * 14) + frame(3, b"body") + frame(8, b"") + frame(1, CLOSE)
    inbox, found, at = bytearray(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        inbox += data[at : max(at, cut)]
        at = max(at, cut)
        found += methods(inbox)
    texts = [(method, reply_text(arguments)) for method, arguments in found]
    assert texts == [((60, 50), "NO_ROUTE"), ((10, 50), "CONNECTION_FORCE")]
    assert not inbox


@given(st.binary(max_size=300))
def test_nonsense_raises_nothing(data):
    methods(bytearray(data))


def answer(tag, multiple):
    return tag.to_bytes(8, "big") + bytes([multiple])


@given(st.data(), st.integers(1, 40))
def test_confirms_are_counted_in_any_order(data, published):
    confirms, left = Confirms(), set(range(1, published + 1))
    confirms.published = published
    while left:
        tag, multiple = data.draw(st.sampled_from(sorted(left))), data.draw(st.booleans())
        answered = {each for each in left if each <= tag} if multiple else {tag}
        method = data.draw(st.sampled_from([ACK, NACK]))
        refused = confirms.answer(method, answer(tag, multiple))
        assert refused == (len(answered) if method == NACK else 0)
        left -= answered
        assert confirms.missing == len(left)


def test_an_answer_that_is_cut_short_counts_nothing():
    confirms = Confirms()
    confirms.published = 1
    assert confirms.answer(ACK, b"\0" * 7) == 0
    assert confirms.missing == 1
