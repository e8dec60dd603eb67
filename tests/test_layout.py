"""The folders and classes of the product stay small."""

from __future__ import annotations

from docs.build.size import MOST_LARGE_CLASSES, MOST_MODULES, PRODUCT, files, large_classes, narrow_folders

# folders that are over the limit, with the modules that they may have; `size.WIDE_FOLDERS` has those that may grow
OVER = {
    "backends/simulated": 22,
    "loadtest/bench": 26,
    "loadtest/lab": 22,
    "policies": 22,
    "router/admin": 40,
    "router/cli": 37,
    "router/control": 21,
    "router/gateway/flow": 28,
    "router/gateway/http": 28,
    "router/placement": 52,
    "router/residency": 23,
    "router/tokenization": 32,
}


def test_no_folder_has_more_modules_than_a_reader_can_hold():
    folders = narrow_folders(files(*PRODUCT))
    assert {name: count for name, count in folders.items() if count > OVER.get(name, MOST_MODULES)} == {}


def test_few_classes_have_many_methods():
    found = list(large_classes(files(*PRODUCT)))
    assert len(found) <= MOST_LARGE_CLASSES, found
