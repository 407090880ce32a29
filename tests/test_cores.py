"""A slot's share of the machine."""

from __future__ import annotations

import pytest

from ganger.cores import FIRST, KIN, affinity, threads


@pytest.mark.parametrize(("cpus", "slots", "share"), [(8, 8, "1"), (8, 3, "2"), (1, 4, "1"), (64, 1, "64")])
def test_libraries_start_as_many_threads_as_a_slot_has_cores(cpus: int, slots: int, share: str) -> None:
    assert threads({}, cpus, slots) == dict.fromkeys((FIRST, *KIN), share)


def test_what_the_user_has_set_stands() -> None:
    """What is said to OpenMP is meant for the others too, unless they are told something else."""
    assert threads({"MKL_NUM_THREADS": "3"}, 8, 4)["OPENBLAS_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in threads({"MKL_NUM_THREADS": "3"}, 8, 4)
    assert threads({FIRST: "4,2"}, 8, 8) == dict.fromkeys(KIN, "4")


def test_each_slot_has_cpus_of_its_own_while_there_are_enough() -> None:
    assert affinity({4, 5, 6, 7}, ["a/1", "a/2"]) == {"a/1": {4, 5}, "a/2": {6, 7}}
    assert affinity({0, 1, 2}, ["a/1", "b/1"]) == {"a/1": {0}, "b/1": {1}}
    assert affinity({2, 9}, ["a/1", "a/2", "a/3"]) == {"a/1": {2}, "a/2": {9}, "a/3": {2}}
