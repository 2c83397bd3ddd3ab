"""The packets of a Perfetto trace, one at a time, whatever the size of the file.

    Trace { packet (1) { ... }  packet (1) { compressed_packets (50): zlib(Trace { packet ... }) } ... }

https://perfetto.dev/docs/reference/trace-packet-proto
"""

import io
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

from ral_trace.tracer.importers.opening import DAMAGED as BROKEN_GZIP

PACKET_TAG = 0x0A
"""Field 1, length-delimited: all that the message Trace has."""
COMPRESSED_TAG = b"\x92\x03"
"""Field 50, length-delimited: how a packet begins that holds compressed packets and nothing else."""
MAX_PACKET_BYTES = 64 << 20
MAX_VARINT_BYTES = 10
BLOCK_BYTES = 64 << 10

CUT_OFF = "the file is cut off: packets up to there are read"
DAMAGED = "the file is damaged: packets up to there are read, and nothing after them"
NOT_A_PACKET = "packets that cannot be parsed: left out"
NOT_UNPACKED = "compressed packets that are damaged: read as far as they go"

Fault = Callable[[str, str], None]
"""Told what is wrong, and where."""


class _EndOfFile(Exception):
    """The file ends inside a packet."""


class _Broken(Exception):
    """What follows is no packet."""


BROKEN: tuple[type[Exception], ...] = (_Broken, *BROKEN_GZIP)


def packets(file: IO[bytes], fault: Fault, advance: Callable[[int], None] = lambda size: None) -> Iterator[Any]:
    """The packets, those in compressed ones included. `fault` hears of what cannot be read. Raises OSError."""
    place = 0
    try:
        while (length := _length(file)) is not None:
            head, size = length
            body = file.read(size)
            if len(body) < size:
                yield from _inflated_part(body, place, fault)
                raise _EndOfFile
            yield from _unpacked(body, place, fault)
            place += head + size
            advance(head + size)
    except (_EndOfFile, EOFError):
        fault(CUT_OFF, f"byte {place}")
    except BROKEN:
        fault(DAMAGED, f"byte {place}")


def _unpacked(body: bytes, place: int, fault: Fault) -> Iterator[Any]:
    packet = _parsed(body)
    if packet is None:
        fault(NOT_A_PACKET, f"byte {place}")
    elif packet.HasField("compressed_packets"):
        yield from _inflated(packet.compressed_packets, place, fault)
    else:
        yield packet


def _inflated(packed: bytes, place: int, fault: Fault) -> Iterator[Any]:
    """The packets of a compressed one; one inside another is not Perfetto's format."""
    file = io.BufferedReader(_Inflating(packed), BLOCK_BYTES)
    try:
        while (length := _length(file)) is not None:
            body = file.read(length[1])
            if len(body) < length[1]:
                raise _EndOfFile
            packet = _parsed(body)
            if packet is None or packet.HasField("compressed_packets"):
                fault(NOT_A_PACKET, f"in the compressed packet at byte {place}")
            else:
                yield packet
    except (zlib.error, _EndOfFile, _Broken):
        fault(NOT_UNPACKED, f"byte {place}")


def _inflated_part(body: bytes, place: int, fault: Fault) -> Iterator[Any]:
    """What is whole in the compressed packet in which a file was cut off."""
    if body.startswith(COMPRESSED_TAG):
        file = io.BytesIO(body[len(COMPRESSED_TAG) :])
        try:
            _varint(file)
        except (_EndOfFile, _Broken):
            return
        yield from _inflated(file.read(), place, fault)


def _parsed(body: bytes) -> Any | None:
    try:
        return TracePacket.FromString(body)
    except DecodeError:
        return None


def _length(file: IO[bytes]) -> tuple[int, int] | None:
    """How long the next packet's head and body are; None at the end of the file."""
    tag = file.read(1)
    if not tag:
        return None
    if tag[0] != PACKET_TAG:
        raise _Broken
    size, used = _varint(file)
    if size > MAX_PACKET_BYTES:
        raise _Broken
    return 1 + used, size


def _varint(file: IO[bytes]) -> tuple[int, int]:
    """A number, and how many bytes it takes."""
    value = 0
    for used in range(MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            raise _EndOfFile
        value |= (byte[0] & 0x7F) << 7 * used
        if byte[0] < 0x80:
            return value, used + 1
    raise _Broken


class _Inflating(io.RawIOBase):
    """Inflates a block at a time: a few bytes may stand for gigabytes."""

    def __init__(self, packed: bytes) -> None:
        self._inflate = zlib.decompressobj()
        self._rest = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inflate.decompress(self._rest, len(buffer))
        self._rest = self._inflate.unconsumed_tail
        if not data and not self._inflate.eof:
            raise zlib.error("the compressed packet is cut off")
        buffer[: len(data)] = data
        return len(data)


def first_packet(head: bytes) -> Any | None:
    """The first packet of a file that begins with `head`, where it is one and whole there."""
    file = io.BytesIO(head)
    try:
        length = _length(file)
    except (_EndOfFile, _Broken):
        return None
    body = b"" if length is None else file.read(length[1])
    return _parsed(body) if body and length is not None and len(body) == length[1] else None
