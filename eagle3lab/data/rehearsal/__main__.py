"""What profile kimi_k25_rehearsal runs on, made here: python -m eagle3lab.data.rehearsal [FOLDER]"""

import argparse
from pathlib import Path

from eagle3lab.data.rehearsal.rows import write_rows
from eagle3lab.data.rehearsal.target import build_target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.data.rehearsal", description=__doc__)
    parser.add_argument("folder", nargs="?", default="runs/rehearsal", help="where the profile looks: runs/rehearsal")
    folder = Path(parser.parse_args().folder)
    files = write_rows(folder / "sets")
    print(f"{build_target(folder / 'target')}: a tiny target of Kimi-K2.5's kind")
    print(f"{folder / 'sets'}: rows of {', '.join(files)}")


if __name__ == "__main__":
    main()
