"""What an injector of a table gives, asked for through JSON and pickles as on Spark."""

import json
import pickle

from millrace.injectors.offsets import advanced, pieces, rows


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
