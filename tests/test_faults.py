"""Faults as a user writes them."""

import pytest

from tf_sparse_strategy.cluster.faults import Fault


def test_faults_are_parsed():
    assert Fault.parse("kill", "3@20") == Fault("kill", 3, 20.0)
    assert Fault.parse("cut", "0@0.5") == Fault("cut", 0, 0.5)


@pytest.mark.parametrize("text", ["3", "3@", "@3", "-1@3", "a@b", "1@2@3"])
def test_other_texts_are_no_faults(text):
    with pytest.raises(ValueError, match="is not NODE@SECONDS: write e.g. --cut 1@20"):
        Fault.parse("cut", text)


def test_faults_name_what_exists():
    Fault("kill", 3, 1).check(nodes=2, ranks=4)
    with pytest.raises(ValueError, match="there is no rank 4; ranks are 0 to 3"):
        Fault("stop", 4, 1).check(nodes=2, ranks=4)
    with pytest.raises(ValueError, match="there is no node 2; nodes are 0 to 1"):
        Fault("cut", 2, 1).check(nodes=2, ranks=4)
