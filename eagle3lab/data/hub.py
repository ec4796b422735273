"""Model folders of a hub, by its own client: from its cache, or downloaded and held against its checksums."""

from collections.abc import Callable, Sequence
from pathlib import Path


def is_hub_name(name: str) -> bool:
    """OWNER/MODEL, and no path."""
    return name.count("/") == 1 and not name.startswith(("/", ".", "~"))


def snapshot(name: str, files: Sequence[str], check: Callable[[Path], None], local_only: bool) -> Path | str:
    """The folder with the `files` (patterns) of a hub model, or the reason why there is none.

    A folder that `check` refuses counts as none. What was downloaded has the hub's sha256 (git's sha1 for small files);
    damaged files are removed. Code of the repository is never run.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(files), local_files_only=local_only))
        damaged = [] if local_only else HfApi().verify_repo_checksums(name, revision=folder.name).mismatches
        for file in (folder / one["path"] for one in damaged):
            file.resolve().unlink()  # the cache's blob: it would be taken for whole next time
            file.unlink(missing_ok=True)
        if damaged:
            return f"damaged on the way: {', '.join(one['path'] for one in damaged)}; try again"
        check(folder)
    except Exception as error:  # the hub client raises many kinds: all of them mean "not from here"
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return folder
