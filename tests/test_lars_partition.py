"""Divisions of tensors over workers: covering, balanced, and the same however often asked."""

import doctest
import itertools
import math

import numpy as np
import pytest

from benchmarks.pto import layers
from lars_pto import partition
from lars_pto.partition import split_tensors, whole_tensors


def resnet50() -> list[int]:
    """Elements of each of ResNet-50's tensors."""
    return [math.prod(shape) for shape in layers.resnet50()]


def loads(division, sizes, costs) -> list[float]:
    """What each worker's share costs."""
    return [
        sum(costs[p.tensor] * (p.end - p.begin) / max(sizes[p.tensor], 1) for p in share)
        for share in division
    ]


def speedup(division, sizes) -> float:
    return sum(sizes) / max(loads(division, sizes, sizes))


def check_covering(division, sizes, workers) -> None:
    """Every element belongs to exactly one piece, and pieces come in order."""
    assert len(division) == workers
    for share in division:
        assert list(share) == sorted(share)
    pieces = sorted(itertools.chain.from_iterable(division))
    for tensor, size in enumerate(sizes):
        own = [piece for piece in pieces if piece.tensor == tensor]
        assert own[0].begin == 0 and own[-1].end == size
        assert all(a.end == b.begin for a, b in itertools.pairwise(own))
        assert len(own) == 1 or all(a.begin < a.end for a in own)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 13])
def test_everything_is_covered(workers):
    rng = np.random.default_rng(workers)
    for count in (0, 1, 2, 5, 30):
        sizes = [int(n) for n in rng.integers(0, rng.choice([2, 100, 10_000]), size=count)]
        costs = [float(c) for c in rng.uniform(0, 5, size=count) * rng.integers(0, 2, size=count)]
        for given in (sizes, costs, [0] * count):
            check_covering(whole_tensors(sizes, given, workers), sizes, workers)
            for unit in (1, 16, 4096):
                division = split_tensors(sizes, given, workers, unit)
                check_covering(division, sizes, workers)
                pieces = list(itertools.chain.from_iterable(division))
                assert pieces == sorted(pieces)
                cuts = {p.begin for share in division for p in share}
                assert all(cut % unit == 0 for cut in cuts)


@pytest.mark.parametrize(
    ("model", "tensors", "elements"),
    [
        ("ResNet-50", 161, 25_557_032),
        ("Transformer", 185, 61_362_176),
        ("BERT-large", 391, 335_141_888),
    ],
)
def test_the_models_are_the_published_ones(model, tensors, elements):
    shapes = layers.MODELS[model]()
    assert (len(shapes), layers.elements(shapes)) == (tensors, elements)


@pytest.mark.parametrize(
    ("workers", "by_cost", "by_index"), [(2, 2.0, 1.12), (4, 4.0, 1.43), (8, 8.0, 2.63)]
)
def test_whole_tensors_are_balanced_where_the_papers_division_is_not(workers, by_cost, by_index):
    sizes = resnet50()
    assert speedup(whole_tensors(sizes, sizes, workers), sizes) == pytest.approx(by_cost, abs=6e-3)
    each = -(-len(sizes) // workers)
    runs = [sum(sizes[worker * each : (worker + 1) * each]) for worker in range(workers)]
    assert sum(sizes) / max(runs) == pytest.approx(by_index, abs=6e-3)


def test_the_largest_tensor_bounds_whole_tensors():
    sizes = resnet50()
    bound = pytest.approx(sum(sizes) / max(sizes))
    assert speedup(whole_tensors(sizes, sizes, 128), sizes) == bound


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16, 128])
def test_split_tensors_are_balanced_for_any_number(workers):
    sizes = resnet50()
    division = split_tensors(sizes, sizes, workers, unit=1 << 12)
    assert max(loads(division, sizes, sizes)) <= sum(sizes) / workers + (1 << 12)
    assert sum(map(len, division)) < len(sizes) + workers


def test_one_huge_tensor():
    assert speedup(whole_tensors([10**6], [10**6], 8), [10**6]) == 1
    assert speedup(split_tensors([10**6], [10**6], 8, 64), [10**6]) == pytest.approx(8, rel=1e-3)


def test_largest_first_is_within_4_thirds_of_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(50):
        costs = [int(c) for c in rng.integers(1, 20, size=6)]
        best = min(
            max(sum(c for c, owner in zip(costs, owners, strict=True) if owner == w) for w in range(3))
            for owners in itertools.product(range(3), repeat=6)
        )
        assert max(loads(whole_tensors(costs, costs, 3), costs, costs)) <= 4 / 3 * best


def test_costs_decide_not_sizes():
    division = whole_tensors([1, 1000], [5.0, 1.0], 1)
    assert loads(division, [1, 1000], [5.0, 1.0]) == [6.0]
    dear = whole_tensors([1, 1000, 1000], [5.0, 1.0, 1.0], 2)
    assert [p.tensor for p in dear[0]] == [0]


def test_docs():
    assert doctest.testmod(partition) == (0, 2)
