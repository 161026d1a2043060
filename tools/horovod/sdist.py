"""The pinned Horovod sdist: fetched once, checked by its hash, unpacked with our edits made."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable

from edit import Edit

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
FILE_NAME = f"horovod-{VERSION}.tar.gz"


class SdistError(RuntimeError):
    """The sdist could not be fetched or is not the pinned one."""


def verify(tarball: pathlib.Path) -> None:
    """Checks that `tarball` is the pinned sdist, byte for byte.

    Raises:
      SdistError: another file.
    """
    received = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if received != SHA256:
        raise SdistError(
            f"{tarball} has sha256 {received}, must be {SHA256}: delete it and run again; if the "
            "same hash comes back, the package index serves another file and must not be trusted"
        )


def fetch(cache: pathlib.Path) -> pathlib.Path:
    """Returns the verified tarball in `cache`; pip downloads it on the first call.

    Raises:
      SdistError: pip failed, or the hash differs.
    """
    tarball = cache / FILE_NAME
    if not tarball.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            # With its hash: pip runs the sdist's setup.py, for metadata, as soon as it has it.
            wanted = pathlib.Path(directory) / "wanted.txt"
            wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary", "horovod", "--no-build-isolation", "--dest", directory]
            command += ["--disable-pip-version-check", "--requirement", str(wanted)]
            if subprocess.run(command).returncode != 0:
                raise SdistError(
                    f"pip could not download horovod=={VERSION} (its message is above): check the "
                    f"network and pip's index, or put {FILE_NAME} into {cache} by hand"
                )
            downloaded = pathlib.Path(directory) / FILE_NAME
            verify(downloaded)
            downloaded.replace(tarball)
    verify(tarball)
    return tarball


def unpack(tarball: pathlib.Path, directory: pathlib.Path, edits: Iterable[Edit]) -> pathlib.Path:
    """Unpacks `tarball` into `directory`, makes `edits`, and returns the source's root.

    Raises:
      EditError: an edit does not fit.
    """
    with tarfile.open(tarball) as archive:
        archive.extractall(directory)  # safe: the hash says which archive it is
    root = directory / f"horovod-{VERSION}"
    for edit in edits:
        edit.apply(root)
    return root
