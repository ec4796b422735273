"""A real file system that is soon full."""

import shutil
import subprocess
from contextlib import contextmanager

import pytest


class SmallDisk:
    """A tmpfs. Sizes are bytes."""

    def __init__(self, folder):
        self.folder = folder

    def resize(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)

    def used(self):
        return shutil.disk_usage(self.folder).used


@contextmanager
def mounted(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        # lazy: what a failed test still holds open must not keep it mounted
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
