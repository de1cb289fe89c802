"""A stream of a generation: the changes of one range of tokens, from where the generation begins to where it ends."""

from __future__ import annotations

import msgspec
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_readers import Part, Reader
from epochlake.metastore.errors import WaitTimeout
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import Interval


class StreamPart(msgspec.Struct, frozen=True):
    """Stream number `stream` of a generation that begins after position `first`: the tokens `within`."""

    generation: int
    stream: int
    within: Interval
    first: int

    @property
    def key(self) -> Part:
        """What tells it from other streams."""
        return self.generation, self.stream


def part_of(
    index: ChangeIndex, kept: ChangeStream, name: str, generation: int | None, stream: int | None
) -> StreamPart:
    """A stream of a generation of the changes of the table `name`.

    Raises ChangesGone for a generation of which no change is kept, InvalidRequest for one that there is not,
    WaitTimeout for one that has not begun.
    """
    hint = f"`epochlake changes generations {name}` lists them"
    if generation is None or stream is None:
        raise InvalidRequest(
            f"changes of {name} are read by a generation and a stream of it, and one of them was not given", hint=hint
        )
    for what, given in (("generation", generation), ("stream", stream)):
        if type(given) is not int:
            raise InvalidRequest(f"{given!r} is no {what} of the changes of {name}: each is a whole number", hint=hint)
    known = {one.number: one for one in kept.known_generations}
    if known and 0 < generation < min(known):
        raise gone(name, index)
    one = known.get(generation)
    if one is None or not 0 <= stream < one.streams:
        raise InvalidRequest(f"the changes of {name} have no stream {stream} of generation {generation}", hint=hint)
    if one.position is None:
        raise WaitTimeout(
            f"generation {generation} of the changes of {name} has not begun",
            hint=f"Run `epochlake changes keep-up {name}`, or a coordinator",
        )
    return StreamPart(generation, stream, one.ranges[stream], one.position)


def end_of(index: ChangeIndex, kept: ChangeStream, name: str, generation: int, up_to: int) -> int | None:
    """Where a generation ends; None where it has not ended up to a position.

    `kept`: from the log as it was after the index was seen to go up to there. A generation is in the log before its
    mark is in the index, so one that is not in the log then begins after that position. Raises ChangesGone for one that
    has left the log since its reader began: where it ended is not known any more, and what comes now is of others.
    """
    if all(one.number != generation for one in kept.known_generations):
        raise gone(name, index)
    for later in kept.known_generations:
        if later.number == generation + 1:
            if later.position is None:
                return index.generation_mark(later.number, later.after, up_to)
            return later.position
    return None


def gone(name: str, index: ChangeIndex) -> ChangesGone:
    """What a reader of the changes of the table `name` is told who comes too late."""
    begun = index.begun()
    first = index.floor() if begun is None else max(begun.position, index.floor())
    return ChangesGone(f"the changes of {name} up to position {first} are not kept any more", index.tail().position)


def require_finished(reader: Reader, part: StreamPart) -> None:
    """That a reader has come to the end of the generation before. Raises InvalidRequest: it would miss changes."""
    if reader.position < part.first:
        raise InvalidRequest(
            f"reader {reader.name} has read up to position {reader.position}, and generation {part.generation} begins "
            f"after position {part.first}",
            hint="Let it come to the end of the generation before first, or give it another name",
        )
