"""A worker that is killed while it prepares set `two`, as one that runs out of memory is."""

import os
import signal

from eagle3lab.data import side_by_side

prepare_set, loop = side_by_side.prepare_set, side_by_side._work


def work(preparation, pipe):
    def dying(spec, *args, **options):
        if spec.name == "two":
            os.kill(os.getpid(), signal.SIGKILL)
        return prepare_set(spec, *args, **options)

    side_by_side.prepare_set = dying
    loop(preparation, pipe)
