"""Reads a GGUF file and turns its tensors into floats. Written from the format, not from ggml's code."""

import struct

import numpy as np

# By value type id: what struct reads. Strings (8) and arrays (9) are made of these.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def halves(column):
    """A column of two bytes each as one 16-bit float a row."""
    return column.copy().view("<f2").astype(np.float64)


def nibbles(column):
    """Sixteen bytes as 32 numbers: first the low halves of all, then the high ones."""
    return np.concatenate([column & 15, column >> 4], axis=1).astype(np.float64)


# By tensor type id: elements and bytes in a block, and what turns rows of blocks into rows of floats.
TYPES = {
    0: ("F32", 1, 4, lambda b: b.copy().view("<f4").astype(np.float64)),
    1: ("F16", 1, 2, halves),
    2: ("Q4_0", 32, 18, lambda b: halves(b[:, :2]) * (nibbles(b[:, 2:]) - 8)),
    3: ("Q4_1", 32, 20, lambda b: halves(b[:, :2]) * nibbles(b[:, 4:]) + halves(b[:, 2:4])),
    8: ("Q8_0", 32, 34, lambda b: halves(b[:, :2]) * b[:, 2:].view(np.int8)),
}


class GgufFile:
    """`metadata` by key; `tensor(name)` as float64, its last axis the one that is contiguous in the file."""

    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        self.at = 0
        magic, version, tensor_count, key_count = self.unpack("4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path} is not GGUF version 3")
        self.metadata = {}
        for _ in range(key_count):
            key = self.string()
            self.metadata[key] = self.value(*self.unpack("I"))
        self.tensors = {}
        for _ in range(tensor_count):
            name = self.string()
            shape = self.unpack("Q" * self.unpack("I")[0])
            self.tensors[name] = (shape, *self.unpack("IQ"))
        alignment = self.metadata.get("general.alignment", 32)
        self.data = -(-self.at // alignment) * alignment

    def unpack(self, layout):
        size = struct.calcsize("<" + layout)
        self.at += size
        return struct.unpack("<" + layout, self.bytes[self.at - size : self.at].tobytes())

    def string(self):
        (length,) = self.unpack("Q")
        self.at += length
        return self.bytes[self.at - length : self.at].tobytes().decode()

    def value(self, type_id):
        if type_id == 8:
            return self.string()
        if type_id == 9:
            element, count = self.unpack("IQ")
            if element in SCALARS:
                return list(self.unpack(SCALARS[element] * count))
            return [self.value(element) for _ in range(count)]
        return self.unpack(SCALARS[type_id])[0]

    def tensor(self, name):
        shape, type_id, offset = self.tensors[name]
        _, elements, size, dequantize = TYPES[type_id]
        blocks = int(np.prod(shape)) // elements
        start = self.data + offset
        data = np.asarray(self.bytes[start : start + blocks * size]).reshape(blocks, size)
        return dequantize(data).reshape(shape[::-1])
