"""Opens a recording and reads its messages topic by topic, whatever wrote it.

ROS 1 bags and ROS 2 bags (a folder with metadata.yaml, or a .db3 file) are read by `rosbags`, single MCAP
files by `mcap`: they may hold messages of ROS 1 and 2, of protobuf, and JSON.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anchor3r.errors import Anchor3RError
from anchor3r.io.extras import bag_library
from anchor3r.io.inputs import insist_on_file
from anchor3r.sources.bags.unpacking import bound_libraries

BAG_SUFFIXES = {".bag", ".db3", ".mcap"}
_METADATA = "metadata.yaml"
_REMEDIES = {
    ".bag": "copy it again, or repair its index with: rosbag reindex FILE",
    ".mcap": "copy it again, or repair its index with: mcap recover FILE -o REPAIRED",
}
_REMEDY = "copy it again, or repair it with: ros2 bag reindex FOLDER"


@dataclass(frozen=True, kw_only=True)
class Topic:
    """What was recorded under one name."""

    name: str
    kind: str
    """Of its messages: sensor_msgs/Image, foxglove.RawImage, …"""
    count: int


class Recording(ABC):
    """An opened recording. A context manager; not to be used by two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics: dict[str, Topic] = {}

    @abstractmethod
    def raw_messages(
        self, topic: str, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Messages of a topic in the order of recording: when each was recorded, and its bytes."""

    @abstractmethod
    def decode(self, topic: str, data: bytes) -> Any:
        """A message as an object with the fields of its definition."""

    @abstractmethod
    def close(self) -> None: ...

    def messages(self, topic: str) -> Iterator[tuple[int, Any]]:
        """All messages of a topic, decoded."""
        for time_ns, data in self.raw_messages(topic):
            yield time_ns, self.decode(topic, data)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_recording(path: Path) -> bool:
    """Whether a path is named as recordings are."""
    return path.suffix.lower() in BAG_SUFFIXES or (path / _METADATA).is_file()


def open_recording(path: Path) -> Recording:
    """Opens a .bag, .db3 or .mcap file, or the folder of a ROS 2 bag."""
    if not path.exists():
        raise Anchor3RError(f"there is no {path}; check the path of the recording")
    if not is_recording(path):
        raise Anchor3RError(
            f"{path} is no recording: name a .bag, .db3 or .mcap file, or the folder of a ROS 2 bag, which "
            f"holds {_METADATA}"
        )
    with damage_told(path):
        for part in sorted(path.iterdir()) if path.is_dir() else [path]:
            if not part.is_dir():
                insist_on_file(part)  # the readers would wait for what a pipe brings
        bound_libraries()
        return McapRecording(path) if path.suffix.lower() == ".mcap" else RosRecording(path)


class RosRecording(Recording):
    """A bag of ROS 1 or 2."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        highlevel, typesys = bag_library("rosbags.highlevel"), bag_library("rosbags.typesys")
        # Bags of before 2023 come without definitions; those of images and poses have never changed.
        usual = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
        self._reader = highlevel.AnyReader([path], default_typestore=usual)
        self._reader.open()
        self._connections: dict[str, list[Any]] = {}
        for name, info in self._reader.topics.items():
            if info.msgtype is not None:
                self.topics[name] = Topic(name=name, kind=_plain(info.msgtype), count=info.msgcount)
                self._connections[name] = info.connections

    def raw_messages(
        self, topic: str, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        connections = self._connections[topic]
        for _, time_ns, data in self._reader.messages(connections, start=start_ns, stop=stop_ns):
            yield time_ns, data

    def decode(self, topic: str, data: bytes) -> Any:
        return self._reader.deserialize(data, self._connections[topic][0].msgtype)

    def close(self) -> None:
        self._reader.close()


class McapRecording(Recording):
    """An MCAP file of any origin. It must have been closed properly: its index is at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        reader = bag_library("mcap.reader")
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        try:
            self._reader = reader.make_reader(self._file, validate_crcs=True)
            summary = self._reader.get_summary()
            if summary is None or summary.statistics is None:
                raise ValueError("it has no index")
            counts = summary.statistics.channel_message_counts
            # Without chunks nothing can be sorted but in memory; such a file is in its own order.
            self._sorted = bool(summary.chunk_indexes)
            self._decoders: dict[str, Callable[[bytes], Any]] = {}
            for channel in summary.channels.values():
                schema = summary.schemas.get(channel.schema_id)
                if schema is None:
                    continue
                before = self.topics[channel.topic].count if channel.topic in self.topics else 0
                count = before + counts.get(channel.id, 0)
                self.topics[channel.topic] = Topic(name=channel.topic, kind=_plain(schema.name), count=count)
                self._decoders[channel.topic] = partial(_decoder, channel.message_encoding, schema, {})
        except BaseException:
            self._file.close()
            raise

    def raw_messages(
        self, topic: str, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        found = self._reader.iter_messages(
            [topic], starting_at=start_ns, ending_before=stop_ns, log_time_order=self._sorted
        )
        for _, _, message in found:
            yield message.log_time, message.data

    def decode(self, topic: str, data: bytes) -> Any:
        return self._decoders[topic](data)

    def close(self) -> None:
        self._file.close()


def _decoder(encoding: str, schema: Any, made: dict[str, Callable[[bytes], Any]], data: bytes) -> Any:
    """Decodes a message of an MCAP channel; what that takes is made with the first one and kept in `made`."""
    if not made:
        made["decode"] = _mcap_decoder(encoding, schema)
    return made["decode"](data)


def _mcap_decoder(encoding: str, schema: Any) -> Callable[[bytes], Any]:
    if encoding == "json":
        return lambda data: json.loads(data, object_hook=lambda fields: SimpleNamespace(**fields))
    if encoding == "protobuf":
        decoder: Callable[[bytes], Any] = (
            bag_library("mcap_protobuf.decoder").DecoderFactory().decoder_for(encoding, schema)
        )
        return decoder
    if encoding not in ("cdr", "ros1"):
        raise ValueError(f"messages in the encoding {encoding} are not known")
    typesys = bag_library("rosbags.typesys")
    read = typesys.get_types_from_idl if schema.encoding == "ros2idl" else None
    text = schema.data.decode()
    kind = "/msg/".join(schema.name.split("/")) if schema.name.count("/") == 1 else schema.name
    store = typesys.get_typestore(typesys.Stores.EMPTY)
    store.register(typesys.get_types_from_msg(text, kind) if read is None else read(text))
    deserialize = store.deserialize_cdr if encoding == "cdr" else store.deserialize_ros1
    return lambda data: deserialize(data, kind)


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turns what readers raise on damaged files into an error that says so."""
    try:
        yield
    except Anchor3RError:
        raise
    except (*_reading_errors(),) as error:
        remedy = _REMEDY if path.is_dir() else _REMEDIES.get(path.suffix.lower(), _REMEDY)
        reason = str(error) or type(error).__name__
        raise Anchor3RError(f"{path} cannot be read as a recording ({reason}); {remedy}") from error


def _reading_errors() -> tuple[type[BaseException], ...]:
    """What the readers raise on damaged files, as seen by damaging files of every kind at random."""
    known: list[type[BaseException]] = [
        OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, EOFError,
        MemoryError, OverflowError, RuntimeError, struct.error,
    ]  # fmt: skip
    for module, name in (
        ("rosbags.highlevel", "AnyReaderError"),
        ("rosbags.rosbag1", "ReaderError"),
        ("rosbags.rosbag2", "ReaderError"),
        ("rosbags.serde", "SerdeError"),
        ("rosbags.typesys", "TypesysError"),
        ("rosbags.rosbag2.reader", "zstd.ZstdError"),
        ("apsw", "Error"),
        ("mcap.exceptions", "McapError"),
        ("zstandard", "ZstdError"),
        ("google.protobuf.message", "DecodeError"),
    ):
        known.append(attrgetter(name)(bag_library(module)))
    return tuple(known)


def _plain(kind: str) -> str:
    """sensor_msgs/msg/Image -> sensor_msgs/Image, as ROS 1 has it."""
    return kind.replace("/msg/", "/")
