"""One shard file: a safetensors file written block by block and read row by row.

Every block is a dict of the same tensor names; a tensor's first dimension is what blocks are joined along. The file is
what `safetensors` would write for the joined tensors, but nothing is joined in memory. Reading is `pread`, not a memory
map: what was read does not stay in the process, and threads may read at once.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import torch

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "U16": torch.uint16,
    "I8": torch.int8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor, without a copy where it is contiguous."""
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")


def checksum(block: Mapping[str, torch.Tensor]) -> int:
    """CRC-32 over the tensors of one row, in the order of their names."""
    value = 0
    for name in sorted(block):
        value = zlib.crc32(tensor_bytes(block[name]), value)
    return value


def write_blocks(path: Path, blocks: list[dict[str, torch.Tensor]]) -> None:
    """Writes the joined blocks. Raises OSError as the file system does, ValueError for blocks of different kinds."""
    header, offset = {}, 0
    for name, first in blocks[0].items():
        kinds = {(block[name].dtype, tuple(block[name].shape[1:])) for block in blocks}
        if len(kinds) != 1:
            raise ValueError(f"{path}: blocks of {name!r} differ in dtype or shape: {sorted(map(str, kinds))}")
        shape = [sum(block[name].shape[0] for block in blocks), *first.shape[1:]]
        size = prod(shape) * first.element_size()
        header[name] = {"dtype": NAMES[first.dtype], "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data at a multiple of eight
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            for block in blocks:
                file.write(tensor_bytes(block[name]))


def header_checksum(path: Path) -> int:
    """CRC-32 of a shard's header: names, dtypes, shapes and places of its tensors."""
    with open(path, "rb") as file:
        return zlib.crc32(_header_bytes(file.fileno()))


def _header_bytes(fd: int) -> bytes:
    """The header of a safetensors file. Raises ValueError when the file is too short for it."""
    length, size = int.from_bytes(os.pread(fd, 8, 0), "little"), os.fstat(fd).st_size
    if not 0 < length <= size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    return os.pread(fd, length, 8)


def _checked_header(header: bytes, data_bytes: int) -> dict[str, dict]:
    """Name -> dtype, shape and data_offsets of each tensor. Raises ValueError for what cannot be."""
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        for name, entry in entries.items():
            start, end = entry["data_offsets"]
            size = prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize
            whole = all(type(number) is int and number >= 0 for number in (*entry["shape"], start, end))
            if not (whole and entry["shape"] and end <= data_bytes and end - start == size):
                raise ValueError(f"{name} of {entry} does not fit in {data_bytes} bytes")
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is damaged ({type(error).__name__}: {error})") from error
    return entries


class ShardFile:
    """An open shard. `read` may be called from several threads.

    header_crc32: the checksum of the header when it was written, None where it is not known.
    Raises ValueError for a header that is damaged: nothing is read by sizes that the file cannot have.
    """

    def __init__(self, path: Path, header_crc32: int | None = None):
        self._fd = os.open(path, os.O_RDONLY)
        header = _header_bytes(self._fd)
        if header_crc32 is not None and zlib.crc32(header) != header_crc32:
            raise ValueError("the checksum of its header differs")
        self._start = 8 + len(header)
        self._header = _checked_header(header, os.fstat(self._fd).st_size - self._start)
        self.names = list(self._header)

    def read(self, names: Iterable[str], start: int, stop: int) -> dict[str, torch.Tensor]:
        """Rows start..stop of the named tensors. Raises EOFError when the file ends before them."""
        return {name: self._read(name, start, stop) for name in names}

    def _read(self, name: str, start: int, stop: int) -> torch.Tensor:
        entry = self._header[name]
        if not 0 <= start <= stop <= entry["shape"][0]:
            raise EOFError(f"{name} has {entry['shape'][0]} rows, not {start}..{stop}")
        dtype, inner = DTYPES[entry["dtype"]], entry["shape"][1:]
        width = prod(inner) * dtype.itemsize
        size, offset = (stop - start) * width, self._start + entry["data_offsets"][0] + start * width
        buffer, got = bytearray(size), 0
        while got < size:
            count = os.preadv(self._fd, [memoryview(buffer)[got:]], offset + got)
            if not count:
                raise EOFError(f"{name} ends at row {start + got // width}")
            got += count
        flat = torch.frombuffer(buffer, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        return flat.view(stop - start, *inner)

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    __del__ = close
