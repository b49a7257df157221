"""What an injector of a table gives, asked for through JSON and pickles as on Spark."""

import json
import pickle
import struct
import zlib

from millrace.injectors.offsets import advanced, pieces
from tests.kit.pieces import rows


class Lakeside:
    """An injector of a table, whose first column is a number, and how far it was read."""

    def begin(self, injector):
        """Begin with a new checkpoint."""
        self.injector = injector
        (self.process,) = injector.processes()
        self.offsets = {}

    def plan(self):
        before, after = self.offsets, advanced("s", self.injector, self.offsets, ())
        self.offsets = json.loads(json.dumps(after))
        return before, self.offsets

    def read(self, between=None):
        planned = pieces(self.injector, *(between or self.plan()))
        found = []
        for piece in pickle.loads(pickle.dumps(planned)):
            found += rows(pickle.loads(pickle.dumps(self.injector)), piece)
        return [row[0] for row in found if not row[-1]]

    def read_all(self):
        """Return the rows of each epoch, until there is nothing more."""
        found, before = [], object()
        while before != self.offsets:
            before = self.offsets
            found.append(self.read())
        return [epoch for epoch in found if epoch]

    def followed(self, place):
        """Return the rows from a place on, each take with where the next one begins."""
        follower = self.injector.follow({self.process: place}, most=2)
        found = []
        while taken := follower.take(0.0):
            for one in taken:
                numbers = one.rows.column(0).to_pylist()
                found.append((numbers, json.loads(json.dumps(one.offset))))
        follower.close()
        return found


def deletion_vector(root, *gone):
    """Write a deletion vector for rows of a file, as Delta's protocol has it; return its entry."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(gone) - 1, 16)
    bitmap += b"".join(struct.pack("<H", n) for n in gone)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    file = root / "vector.bin"
    file.write_bytes(
        b"\1" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    )
    return {
        "storageType": "p",
        "pathOrInlineDv": file.as_uri(),
        "offset": 1,
        "sizeInBytes": len(data),
        "cardinality": len(gone),
    }


def delta_log(root, version):
    """Return the file of a version of a Delta table."""
    return root / "_delta_log" / f"{version:020}.json"
