"""How much memory a cache may take: the least of the limits, read from made-up machines."""

import doctest
import pathlib

import pytest

from datacache import budget
from datacache.budget import Limit

GB = 1 << 30


def machine(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_reserve_is_a_part_of_all_memory(tmp_path):
    """Not of what is free."""
    meminfo = f"MemTotal: {64 << 20} kB\nMemAvailable: {10 << 20} kB\n"
    [limit] = budget.available(machine(tmp_path, {"proc/meminfo": meminfo}))
    assert limit.bytes == 10 * GB - int(0.1 * 64 * GB)


def test_the_least_limit_binds():
    assert budget.least([Limit(5, "a"), Limit(3, "b"), Limit(4, "c")]) == Limit(3, "b")
    assert budget.least([Limit(-5, "a")]) == Limit(0, "a")


@pytest.mark.parametrize("memory", ["12 apples", "GB", -1, 1.5, None, True, "-1GB"])
def test_no_amount_of_memory(memory):
    with pytest.raises(ValueError, match="memory="):
        budget.parse(memory)


def test_control_groups_of_version_2(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": f"{10 * GB}\n",
            "sys/fs/cgroup/job/memory.current": f"{4 * GB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GB}\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": f"{GB}\n",
        },
    )
    [limit] = budget.cgroup_limits(root)  # the parent's; the group itself has none
    assert limit.bytes == 10 * GB - 3 * GB - GB
    assert "job" in limit.reason
    (root / "sys/fs/cgroup/job/memory.high").write_text(f"{8 * GB}\n")  # is throttled from there on
    [limit] = budget.cgroup_limits(root)
    assert limit.bytes == 8 * GB - 3 * GB - int(0.1 * 8 * GB)


def test_control_groups_of_version_1(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,memory:/docker/x\n3:pids:/\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": f"{2 * GB}\n",
            "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": f"{GB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        },
    )
    [limit] = budget.cgroup_limits(root)
    assert limit.bytes == GB - int(0.2 * GB)


def test_no_control_group_no_limit(tmp_path):
    assert budget.cgroup_limits(machine(tmp_path, {"proc/self/cgroup": "0::/\n"})) == []
    assert budget.cgroup_limits(tmp_path / "nothing") == []


def test_available_memory(tmp_path):
    root = machine(tmp_path, {"proc/meminfo": "MemTotal: 209715200 kB\nMemAvailable: 104857600 kB\n"})
    [limit] = budget.available(root)
    assert limit.bytes == 100 * GB - 8 * GB  # the reserve has a ceiling
    assert budget.available(tmp_path / "nothing") == []


def test_this_machine(tmp_path):
    limits = budget.limits("1MB", str(tmp_path))
    assert budget.least(limits) == Limit(1 << 20, "memory='1MB'")
    assert len(budget.limits("auto", str(tmp_path))) == len(limits) - 1
    # What the store holds already is not asked for twice.
    more = budget.limits("auto", str(tmp_path), held=1 << 50)
    assert budget.least(more).bytes >= 1 << 50


def test_what_others_were_promised_is_not_free(tmp_path):
    before, after = (
        budget.limits("1MB", str(tmp_path), promised=promised) for promised in (0, 1 << 50)
    )
    assert before[-1] == after[-1] == Limit(1 << 20, "memory='1MB'")  # the user's is this store's
    assert all("other stores in use" in one.reason for one in after[:-1])
    assert budget.least(after).bytes == 0


def test_rooms_fill_the_limit_and_no_more():
    for limit in range(0, 1200, 7):
        for encoded_bytes in (None, 20, 99, 100, 300):
            kept = budget.rooms(limit, 10, 10, 100, encoded_bytes)
            used = kept.decoded * 100 + kept.encoded * (encoded_bytes or 0)
            assert used <= limit and sum(kept) <= 10
            # One more decoded, in the place of an encoded one if need be, would not fit.
            more = 100 - (encoded_bytes if kept.encoded else 0)
            assert kept.decoded == 10 or used + more > limit or sum(kept) < 10
            # What does not fit decoded is encoded before anything is read again.
            if encoded_bytes == 20 and limit >= 200:
                assert sum(kept) == 10


def test_rooms_of_a_share():
    assert budget.rooms(600, 10, 5, 100, 20) == budget.Rooms(6, 0)  # all it needs, and one for an exchange
    assert budget.rooms(300, 10, 5, 100, 20) == budget.Rooms(2, 3)
    assert budget.rooms(300, 10, 5, 100, None) == budget.Rooms(3, 0)


def test_forecast():
    whole = budget.forecast(100, 1024, Limit(GB, "x"), budget.Rooms(100, 0), "/dev/shm")
    assert "100 KB" in whole and "all fit" in whole
    free = Limit(50 * GB, "the machine's free memory")
    part = budget.forecast(100, GB, free, budget.Rooms(50, 0), "/dev/shm")
    assert "50 of them (50%)" in part and "free memory" in part and "--shm-size" not in part
    assert "encoded" not in part and "read and decoded in each epoch" in part
    both = budget.forecast(100, GB, free, budget.Rooms(40, 60), "/dev/shm")
    assert "60 are kept encoded" in both and "read and decoded" not in both
    small = Limit(60 << 20, "the free space of /dev/shm")
    docker = budget.forecast(1000, 1 << 20, small, budget.Rooms(60, 0), "/dev/shm")
    assert "--shm-size" in docker


def test_the_examples_of_the_module():
    assert doctest.testmod(budget).failed == 0
