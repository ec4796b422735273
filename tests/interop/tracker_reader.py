"""What a tracker's own reader finds of the run "run-1", as JSON. Run in a process of its own, the tracker on its path.

Usage: tracker_reader.py tensorboard|trackio FOLDER (of trackio's files: TRACKIO_DIR). It prints {"config": as the
tracker keeps it, "curves": {name: [[step, value], ...]}}.
"""

import contextlib
import io
import json
import sys


def tensorboard(folder: str) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{folder}/run-1").Reload()
    curves = {name: [[one.step, one.value] for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    [text] = events.Tensors("config/text_summary")
    return {"config": text.tensor_proto.string_val[0].decode(), "curves": curves}


def trackio(_folder: str) -> dict:
    import trackio

    [run] = trackio.Api().runs("eagle3lab")
    names = _trackio_says("list", "metrics")["metrics"]
    values = {name: _trackio_says("get", "metric", "--metric", name)["values"] for name in names}
    curves = {name: [[one["step"], one["value"]] for one in found] for name, found in values.items()}
    return {"config": run.config, "curves": curves}


def _trackio_says(*words: str) -> dict:
    """The answer of its command line."""
    from trackio.cli import main

    sys.argv = ["trackio", *words, "--project", "eagle3lab", "--run", "run-1", "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main()
    return json.loads(said.getvalue())


if __name__ == "__main__":
    print(json.dumps({"tensorboard": tensorboard, "trackio": trackio}[sys.argv[1]](sys.argv[2])))
