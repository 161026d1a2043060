"""What most of DataCache's tests begin with; a pytest plugin."""

import pytest

from tests import datacache_help as help_


@pytest.fixture
def shm(tmp_path):
    """A directory for stores."""
    path = tmp_path / "shm"
    path.mkdir()
    return path


@pytest.fixture
def pattern(tmp_path):
    """Of TFRecord files with 150 records."""
    return help_.records(tmp_path / "source")
