"""Messages are typed: what is none of them is refused before anybody looks at it."""

import msgspec
import pytest

pytest.importorskip("torch")

from executor.distributed.messages import (
    AnyMessage,
    Begin,
    Ended,
    Frozen,
    Gone,
    LossPart,
    Message,
)
from executor.distributed.values import Parcel

DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)
PARCEL = Parcel("a", 3, b"random", None, {0: [None, None]})


@pytest.mark.parametrize(
    "message",
    [
        Frozen(1, 2),
        Begin(2, True, 1.5, [PARCEL]),
        Ended(2, False, [PARCEL], {1: (100, 0)}),
        LossPart("a", False, 1, 2, 0.1, 4.0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_as_it_was(message: Message) -> None:
    """With all that it holds."""
    assert DECODER.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize(
    "said", [["Anything", 1], ["LossPart", "a", False, "one", 2, 0.1, 4.0], {"type": "Bye"}, 7]
)
def test_anything_else_is_refused(said: object) -> None:
    """Other names, other types of fields, no message at all."""
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(msgspec.msgpack.encode(said))


def test_every_message_has_a_name_of_its_own() -> None:
    """By which it is told from the others."""
    tags = [one.__struct_config__.tag for one in Message.__subclasses__()]
    assert len(set(tags)) == len(tags)
    assert set(AnyMessage.__args__) == set(Message.__subclasses__()) - {Gone}  # never sent
